"""The kernels without a GPU: correct in Triton's interpreter, and compiled for a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

triton = pytest.importorskip("triton", reason="Triton is for Linux only")

KERNELS = ("convolve_kernel", "of_input_kernel", "of_weight_kernel")


@pytest.mark.long
def test_they_are_right_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lanes.interpreted"], env=environment, capture_output=True, text=True, check=True
    )
    errors = json.loads(done.stdout)
    assert len(errors) == 6
    assert max(errors) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kernel", [3, 1])
@pytest.mark.parametrize("even", [True, False])
def test_they_use_the_tensor_cores_of_an_h100_and_spill_nothing(
    name: str, kernel: int, even: bool, tmp_path: Path
) -> None:
    """Registers that do not suffice would be spilled to a stack. With even channels, copies run in parallel with
    products."""
    found = translated(name, kernel, even=even)
    assert "wgmma.mma_async" in found.asm["ptx"]
    assert ("cp.async" in found.asm["ptx"]) == even
    file = tmp_path / "kernel.cubin"
    file.write_bytes(found.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"STACK:(\d+)", said) == ["0"]


def translated(name: str, kernel: int, *, even: bool) -> Any:
    """A kernel compiled for compute capability 9.0; `even`: the numbers of channels are multiples of 16."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bench.lanes import kernels

    function: Any = getattr(kernels, name)
    constants = {"KERNEL_H": kernel, "KERNEL_W": kernel, "STRIDE_H": 2, "STRIDE_W": 2, "PADDING_H": 1, "PADDING_W": 1}
    constants |= kernels.BLOCKS if even else kernels.ODD_BLOCKS
    names = function.arg_names
    numbers = dict.fromkeys(names[3:], "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=function,
        signature=dict.fromkeys(names[:3], "*bf16") | numbers,
        constexprs={(names.index(key),): value for key, value in constants.items()},
        attrs={
            (names.index(key),): [["tt.divisibility", 16]]
            for key in (*names[:3], *(("channels", "filters") if even else ()))
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(kernels.OPTIONS))
