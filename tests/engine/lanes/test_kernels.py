"""The kernels without a GPU: correct in Triton's interpreter, and compiled for a GPU."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("triton", reason="Triton is for Linux only")

from bench.engine.lanes import kernels, norm_kernels, sgd_kernel
from tests.engine.lanes.compiling import bytes_of_stack, compiled

KERNELS = ("convolve_kernel", "of_input_kernel", "of_weight_kernel")


@pytest.mark.long
def test_they_are_right_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.lanes.interpreted"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found["convolutions"]) == 6
    assert max(found["convolutions"]) < 1e-5
    assert len(found["norm_relu"]) == 24
    assert max(found["norm_relu"]) < 1e-4  # the mean is 30 times the deviation
    errors, same_bits = zip(*found["sgd"], strict=True)
    assert max(errors) < 1e-6
    assert same_bits == (True,) * 8


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kernel", [3, 1])
@pytest.mark.parametrize("even", [True, False])
def test_convolutions_use_the_tensor_cores_of_an_h100_and_spill_nothing(
    name: str, kernel: int, even: bool, tmp_path: Path
) -> None:
    """With even channels, that is multiples of 16, copies run in parallel with products."""
    function: Any = getattr(kernels, name)
    constants = {"KERNEL_H": kernel, "KERNEL_W": kernel, "STRIDE_H": 2, "STRIDE_W": 2, "PADDING_H": 1, "PADDING_W": 1}
    constants |= kernels.BLOCKS if even else kernels.ODD_BLOCKS
    names = [name for name in function.arg_names if name not in constants]
    tensors, numbers = dict.fromkeys(names[:3], "*bf16"), dict.fromkeys(names[3:], "i32")
    found = compiled(function, tensors, numbers, constants, kernels.OPTIONS, ("channels", "filters") if even else ())
    assert "wgmma.mma_async" in found.asm["ptx"]
    assert ("cp.async" in found.asm["ptx"]) == even
    assert bytes_of_stack(found, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(("channels", "taps", "kind"), [(512, 9, "bf16"), (3, 9, "bf16"), (1, 1, "fp32")])
def test_a_step_of_sgd_rounds_products_and_sums_apart_and_spills_nothing(
    channels: int, taps: int, kind: str, tmp_path: Path
) -> None:
    for decays, moves, nesterov in itertools.product((False, True), repeat=3):
        constants = {"CHANNELS": channels, "TAPS": taps, "DECAYS": decays, "MOVES": moves, "NESTEROV": nesterov}
        tensors = dict.fromkeys(("w", "velocity", "lr", "new_w", "new_velocity"), "*fp32") | {"g": f"*{kind}"}
        numbers = dict.fromkeys(("d", "start", "size"), "i32") | dict.fromkeys(("momentum", "decay"), "fp32")
        constants |= {"BLOCK": sgd_kernel.BLOCK}
        found = compiled(sgd_kernel.sgd_kernel, tensors, numbers, constants, sgd_kernel.OPTIONS)
        assert "fma" not in found.asm["ptx"]
        assert bytes_of_stack(found, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_batchnorm_with_relu_loads_many_channels_at_once_and_spills_nothing(
    residual: bool, padded: bool, tmp_path: Path
) -> None:
    for function in (norm_kernels.forward_kernel, norm_kernels.backward_kernel):
        constants = {"RESIDUAL": residual, "MASKED": padded, "RELU": True, **norm_kernels.BLOCKS}
        images = {"x", "residual", "out", "g", "of_x", "of_residual"}
        numbers = dict.fromkeys(("pixels", "channels", "places", "width"), "i32") | {"momentum": "fp32", "eps": "fp32"}
        names = [name for name in function.arg_names if name not in constants]
        tensors = {name: "*bf16" if name in images else "*fp32" for name in names if name not in numbers}
        taken = {name: kind for name, kind in numbers.items() if name in names}
        found = compiled(function, tensors, taken, constants, norm_kernels.OPTIONS, ("channels",))
        assert "ld.global.v4" in found.asm["ptx"] or "cp.async" in found.asm["ptx"]
        assert bytes_of_stack(found, tmp_path) == 0
