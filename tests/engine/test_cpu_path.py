"""The recorded path changes if the same CPU is restricted to older instruction sets.

That a checkpoint of another path starts again, `runs/test_cell.py` proves.
"""

import os
import subprocess
import sys

import pytest
import torch

from bench.engine.device import cpu_kernels


@pytest.mark.long
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="a CPU without vector instructions")
def test_pytorch_s_older_kernels_count() -> None:
    code = "from bench.engine.device import cpu_kernels; print(cpu_kernels())"
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() != cpu_kernels()


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "MKL_CBWR"])
def test_limits_of_the_environment_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = cpu_kernels()
    monkeypatch.setenv(name, "AVX2")
    assert set(cpu_kernels().split()) - set(before.split()) == {f"{name}=AVX2"}


def test_instruction_sets_of_the_cpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CPUs for which PyTorch's own kernels are the same, but only one can multiply matrices in tiles."""
    kernels = []
    for tiles in (False, True):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda t=tiles: {"cpu_name": "Intel Xeon", "amx_tile": t})
        kernels.append(set(cpu_kernels().split()))
    assert kernels[1] - kernels[0] == {"amx_tile"}
