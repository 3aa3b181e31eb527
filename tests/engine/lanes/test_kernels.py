"""The kernels without a GPU: correct in Triton's interpreter, and compiled for a GPU."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT

pytest.importorskip("triton", reason="Triton is for Linux only")

import triton

from bench import dft_kernels
from bench.engine.lanes import kernels, norm_kernels, sgd_kernel

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
    assert {products: len(errors) for products, errors in found["convolutions"].items()} == {"ieee": 6, "tf32x3": 6}
    assert max(itertools.chain(*found["convolutions"].values())) < 1e-5
    assert len(found["norm_relu"]) == 24
    assert max(found["norm_relu"]) < 1e-4  # the mean is 30 times the deviation
    errors, same_bits = zip(*found["sgd"], strict=True)
    assert max(errors) < 1e-6
    assert same_bits == (True,) * 16
    assert found["weights_in_order"] == [True] * 3
    assert len(found["spectra"]) == 8
    assert max(found["spectra"]) < 1e-5


def compiled(
    function: Any,
    kind: str,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    others: Mapping[str, str],
    divisible: Iterable[str] = (),
) -> Any:
    """A kernel for an H100.

    Args:
        kind: Triton's name of the type of arguments, such as `*fp32` for tensors.
        others: arguments of other types.
        divisible: numbers that are multiples of 16; the addresses of tensors always are.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    kinds = {name: others.get(name, kind) for name in names if name not in constants}
    tensors = [name for name, kind in kinds.items() if kind.startswith("*")]
    source = ASTSource(
        fn=function,
        signature={**kinds, **dict.fromkeys(constants, "constexpr")},
        constexprs={(names.index(key),): value for key, value in constants.items()},
        attrs={(names.index(key),): [["tt.divisibility", 16]] for key in (*tensors, *divisible)},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(options))


def bytes_of_stack(kernel: Any, folder: Path) -> int:
    """Registers that do not suffice are spilled to a stack of so many bytes."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", said)
    return int(found)


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("kind", "products"), [("bf16", "tf32"), ("fp32", "tf32"), ("fp32", "tf32x3"), ("fp32", "ieee")]
)
@pytest.mark.parametrize("even", [True, False])
def test_convolutions_use_the_tensor_cores_of_an_h100_and_spill_nothing(
    name: str, kind: str, products: str, even: bool, tmp_path: Path
) -> None:
    """IEEE products of float32 cannot use them. Copies run in parallel with products, but for single numbers in 16
    bits: with channels that are not multiples of 16."""
    function: Any = getattr(kernels, name)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    for kernel in (3, 1):
        sizes = {"KERNEL_H": kernel, "KERNEL_W": kernel, "STRIDE_H": 2, "STRIDE_W": 2, "PADDING_H": 1, "PADDING_W": 1}
        constants = {**sizes, "PRODUCTS": products, **kernels.block_sizes(dtype, products, even=even)}
        tensors = dict.fromkeys(function.arg_names[:3], f"*{kind}")
        even_numbers = ("channels", "filters") if even else ()
        found = compiled(function, "i32", constants, kernels.OPTIONS, tensors, even_numbers)
        assert ("wgmma.mma_async" in found.asm["ptx"]) == (products != "ieee")
        assert ("cp.async" in found.asm["ptx"]) == (even or kind == "fp32")
        assert bytes_of_stack(found, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(("channels", "taps", "even"), [(512, 9, True), (64, 9, True), (3, 49, False)])
def test_weights_are_written_many_at_once_in_their_new_order(
    channels: int, taps: int, even: bool, tmp_path: Path
) -> None:
    function: Any = kernels.in_order_kernel
    constants = {"TAPS": taps, **kernels.order_blocks(channels, taps)}
    tensors = {"w": "*fp32", "out": "*bf16"}
    found = compiled(function, "i32", constants, kernels.OPTIONS, tensors, ("channels",) if even else ())
    assert ("st.global.v4" in found.asm["ptx"]) == even
    assert bytes_of_stack(found, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(("channels", "taps", "kind"), [(512, 9, "bf16"), (3, 9, "bf16"), (1, 1, "fp32")])
def test_a_step_of_sgd_rounds_products_and_sums_apart_and_spills_nothing(
    channels: int, taps: int, kind: str, tmp_path: Path
) -> None:
    for decays, moves, nesterov in itertools.product((False, True), repeat=3):
        flags = {"MORE": moves, "DECAYS": decays, "MOVES": moves, "NESTEROV": nesterov}
        constants = {"CHANNELS": channels, "TAPS": taps, **flags, "BLOCK": sgd_kernel.BLOCK}
        numbers = dict.fromkeys(("d", "start", "size"), "i32") | dict.fromkeys(("momentum", "decay"), "fp32")
        others = {**numbers, "g": f"*{kind}"}
        found = compiled(sgd_kernel.sgd_kernel, "*fp32", constants, sgd_kernel.OPTIONS, others)
        assert "fma" not in found.asm["ptx"]
        assert bytes_of_stack(found, tmp_path) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "columns"),
    [(name, columns) for name in ("columns", "pairs", "vector", "order", "divergence") for columns in (2, 32)]
    + [("order", 1), ("divergence", 1)],
)
def test_what_surrounds_a_transform_goes_over_neighbours_and_spills_nothing(
    name: str, columns: int, tmp_path: Path
) -> None:
    """Neighbouring threads load and store both parts of neighbouring numbers at once, whatever is transposed."""
    function: Any = getattr(dft_kernels, f"{name}_kernel")
    others = {**dict.fromkeys(dft_kernels.SIZES, "i32"), "scale": "fp32", "sums": "*fp64"}
    shape = {"ROWS": dft_kernels.TILE // columns, "COLUMNS": columns}
    names = [flag for flag in ("GENERALISED", "FIRST", "TO_HALF") if flag in function.arg_names]
    for flags in itertools.product((False, True), repeat=len(names)):
        constants = {**dict(zip(names, flags, strict=True)), **shape}
        found = compiled(function, "*fp32", constants, dft_kernels.OPTIONS, others)
        assert bytes_of_stack(found, tmp_path) == 0
        assert "ld.global.v2" in found.asm["ptx"]
        assert name == "vector" or "st.global.v2" in found.asm["ptx"]
        if columns == 32:
            assert_neighbours(found.asm["ttgir"])


def assert_neighbours(intermediate: str) -> None:
    """Assert that the 32 threads of a warp have 32 neighbours in the last dimension, or in the last but the parts'."""
    layouts = dict(
        re.findall(r"^(#\w+) = #ttg\.blocked<\{.*?threadsPerWarp = \[([\d, ]+)\]", intermediate, re.MULTILINE)
    )
    used = re.findall(r"tt\.(?:load|store) .*: tensor<([\dx]+)x!tt\.ptr<f32>, (#\w+)>", intermediate)
    assert used
    for shape, layout in used:
        assert layouts[layout] == ("1, 32, 1" if shape.count("x") == 2 else "1, 32")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_batchnorm_with_relu_loads_many_channels_at_once_and_spills_nothing(
    residual: bool, padded: bool, kind: str, tmp_path: Path
) -> None:
    images = dict.fromkeys(("x", "residual", "out", "g", "of_x", "of_residual"), f"*{kind}")
    counts = "pixels", "channels", "places", "width", *norm_kernels.PITCHES
    numbers = dict.fromkeys(counts, "i32") | {"momentum": "fp32", "eps": "fp32"}
    constants = {"RESIDUAL": residual, "MASKED": padded, "RELU": True, **norm_kernels.BLOCKS}
    for function in (norm_kernels.forward_kernel, norm_kernels.backward_kernel):
        found = compiled(function, "*fp32", constants, norm_kernels.OPTIONS, images | numbers, ("channels",))
        assert "ld.global.v4" in found.asm["ptx"] or "cp.async" in found.asm["ptx"]
        assert bytes_of_stack(found, tmp_path) == 0
