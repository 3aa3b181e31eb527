"""The recorded path changes if the same CPU is restricted to older instruction sets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.engine.device import cpu_kernels
from bench.runs.cell import CellConfig, run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from bench.store.store import read_status

OLDER = {"ATEN_CPU_CAPABILITY": "default"}
SETTINGS = Settings(method="fedavg", alpha=1.0, clients=2, rounds=2, model="logistic")


def _python(*arguments: str, **more: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.long
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="a CPU without vector instructions")
def test_a_checkpoint_of_other_instruction_sets_starts_again(tmp_path: Path) -> None:
    """As with a checkpoint of another executor."""
    folder, options = tmp_path / "cell", Options(device="cpu", checkpoint_seconds=0, keep="all")
    config = CellConfig(settings=SETTINGS, folder=folder, options=options)
    (tmp_path / "cell.json").write_text(config.model_dump_json())
    _python("-m", "bench.runs.cell", str(tmp_path / "cell.json"), **OLDER)
    status = read_status(folder)
    before = str(status.path["cpu"])
    assert before != cpu_kernels()
    status_file = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status_file | {"state": "interrupted"}))
    assert run_cell(SETTINGS, folder, options).path["cpu"] == cpu_kernels()
    log = (folder / "log.txt").read_text()
    assert f"is from another path (cpu {before} -> {cpu_kernels()}): starting again" in log
    assert "going on after" not in log


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "MKL_CBWR"])
def test_limits_of_the_environment_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = cpu_kernels()
    monkeypatch.setenv(name, "AVX2")
    assert set(cpu_kernels().split()) - set(before.split()) == {f"{name}=AVX2"}


def test_instruction_sets_of_the_cpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CPUs for which PyTorch's own kernels are the same, but only one can multiply matrices in tiles."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "Intel Xeon", "amx_tile": False})
    without = cpu_kernels()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "Intel Xeon", "amx_tile": True})
    assert set(cpu_kernels().split()) - set(without.split()) == {"amx_tile"}
