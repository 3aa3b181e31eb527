"""Triton kernels for convolutions in which every lane has its own weights, as matrix products on tensor cores.

The columns of the product ("im2col") are gathered block by block on the chip and never written to memory. Inputs and
outputs are bfloat16 or float32, sums float32. `PRODUCTS` says how float32 is multiplied, in Triton's words: `ieee`
without tensor cores, `tf32` rounded to 10 bits, or `tf32x3`, the sum of three such products. The block sizes depend on
nothing but this and the channels, so that equal inputs give equal results.

Shapes: images `[samples, lanes * channels, height, width]` and outputs `[samples, lanes * filters, rows, columns]`,
both in the channels-last memory format; weights `[lanes, filters, kernel height, kernel width, channels]`. A tap is a
position in the convolution's kernel; `m` counts the pixels of all samples.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.engine.lanes.common import Geometry

SIZES = ["samples", "height", "width", "rows", "columns"]
"""Numbers for whose values nothing is compiled anew, as is done for channels and filters, which decide how it loads."""
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}
"""`enable_fp_fusion` is the default up to Triton 3.9, and no longer in 3.10."""


@triton.jit(do_not_specialize=SIZES)
def convolve_kernel(
    x, w, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, PRODUCTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`out[m, o]` is the sum of `x * w` over taps and channels; `m` is a pixel of the output."""
    lane, lanes = tl.program_id(2), tl.num_programs(2)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n, place = m // (rows * columns), m % (rows * columns)
    top, left = place // columns * STRIDE_H - PADDING_H, place % columns * STRIDE_W - PADDING_W
    taps: tl.constexpr = KERNEL_H * KERNEL_W
    blocks = tl.cdiv(channels, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(taps * blocks):
        tap, c = step // blocks, step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        y, z = top + tap // KERNEL_W, left + tap % KERNEL_W
        inside = (n < samples) & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        at = (((n * height + y) * width + z) * lanes + lane) * channels
        cut = tl.load(x + at[:, None] + c[None, :], inside[:, None] & (c < channels)[None, :], 0.0)
        at = ((lane * filters + o) * taps + tap) * channels
        weights = tl.load(w + at[None, :] + c[:, None], (o < filters)[None, :] & (c < channels)[:, None], 0.0)
        total = tl.dot(cut, weights, total, input_precision=PRODUCTS)
    at = (m * lanes + lane) * filters
    tl.store(
        out + at[:, None] + o[None, :], total.to(out.dtype.element_ty), (n < samples)[:, None] & (o < filters)[None, :]
    )


@triton.jit(do_not_specialize=SIZES)
def of_input_kernel(
    g, w, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, PRODUCTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`out[m, c]` is the sum of `g * w` over taps and filters; `m` is a pixel of the image."""
    lane, lanes = tl.program_id(2), tl.num_programs(2)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n, place = m // (height * width), m % (height * width)
    bottom, right = place // width + PADDING_H, place % width + PADDING_W
    taps: tl.constexpr = KERNEL_H * KERNEL_W
    blocks = tl.cdiv(filters, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(taps * blocks):
        tap, o = step // blocks, step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        y, z = bottom - tap // KERNEL_W, right - tap % KERNEL_W
        inside = (n < samples) & (y >= 0) & (z >= 0) & (y % STRIDE_H == 0) & (z % STRIDE_W == 0)
        inside = inside & (y // STRIDE_H < rows) & (z // STRIDE_W < columns)
        at = (((n * rows + y // STRIDE_H) * columns + z // STRIDE_W) * lanes + lane) * filters
        slopes = tl.load(g + at[:, None] + o[None, :], inside[:, None] & (o < filters)[None, :], 0.0)
        at = ((lane * filters + o) * taps + tap) * channels
        weights = tl.load(w + at[:, None] + c[None, :], (o < filters)[:, None] & (c < channels)[None, :], 0.0)
        total = tl.dot(slopes, weights, total, input_precision=PRODUCTS)
    at = (m * lanes + lane) * channels
    tl.store(
        out + at[:, None] + c[None, :], total.to(out.dtype.element_ty), (n < samples)[:, None] & (c < channels)[None, :]
    )


@triton.jit(do_not_specialize=SIZES)
def of_weight_kernel(
    g, x, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, PRODUCTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute for each tap `out[o, c]`, the sum of `g[m, o] * x[m, c]` over all output pixels `m`."""
    lane, lanes = tl.program_id(2), tl.num_programs(2)
    taps: tl.constexpr = KERNEL_H * KERNEL_W
    tap = tl.program_id(0) % taps
    o = tl.program_id(0) // taps * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, samples * rows * columns, BLOCK_K):
        m = start + tl.arange(0, BLOCK_K)
        n, place = m // (rows * columns), m % (rows * columns)
        at = (m * lanes + lane) * filters
        slopes = tl.load(g + at[:, None] + o[None, :], (n < samples)[:, None] & (o < filters)[None, :], 0.0)
        y = place // columns * STRIDE_H - PADDING_H + tap // KERNEL_W
        z = place % columns * STRIDE_W - PADDING_W + tap % KERNEL_W
        inside = (n < samples) & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        at = (((n * height + y) * width + z) * lanes + lane) * channels
        cut = tl.load(x + at[:, None] + c[None, :], inside[:, None] & (c < channels)[None, :], 0.0)
        total = tl.dot(tl.trans(slopes), cut, total, input_precision=PRODUCTS)
    at = ((lane * filters + o) * taps + tap) * channels
    tl.store(
        out + at[:, None] + c[None, :], total.to(out.dtype.element_ty), (o < filters)[:, None] & (c < channels)[None, :]
    )


@triton.jit(do_not_specialize=["filters", "pitch"])
def in_order_kernel(w, out, filters, channels, pitch, TAPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr):
    """Write some channels of a filter, `[channels, taps]` of a lane's weights, as `[taps, channels]`."""
    o, lane = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c, tap = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_T)
    inside = (c < channels)[:, None] & (tap < TAPS)[None, :]
    numbers = tl.load(w + lane * pitch + (o * channels + c[:, None]) * TAPS + tap[None, :], inside, 0.0)
    at = (lane * filters + o) * TAPS * channels
    tl.store(out + at + tap[None, :] * channels + c[:, None], numbers.to(out.dtype.element_ty), inside)


def weights_in_order(w: Tensor, kind: torch.dtype) -> Tensor:
    """Weights `[..., filters, channels, kernel height, kernel width]`, with channels last and in another type.

    PyTorch's copy reads them with one number out of each `taps`, which takes twice the time.
    """
    *lanes, filters, channels, rows, columns = w.shape
    flat, taps = w.reshape(-1, filters, channels, rows * columns), rows * columns
    flat = flat if flat[0].is_contiguous() else flat.contiguous()
    out = w.new_empty(*lanes, filters, rows, columns, channels, dtype=kind)
    blocks = order_blocks(channels, taps)
    grid = filters, triton.cdiv(channels, blocks["BLOCK_C"]), len(flat)
    in_order_kernel[grid](flat, out, filters, channels, flat.stride(0), taps, *blocks.values(), **OPTIONS)
    return out


def order_blocks(channels: int, taps: int) -> dict[str, int]:
    """Channels and taps that a program takes, some two thousand numbers."""
    block = triton.next_power_of_2(taps)
    return {"BLOCK_C": min(triton.next_power_of_2(channels), max(1, 2048 // block)), "BLOCK_T": block}


def convolve(x: Tensor, w: Tensor, geometry: Geometry, products: str) -> Tensor:
    """Convolve every lane's images with the lane's weights."""
    lanes, filters = w.shape[:2]
    rows, columns = geometry.output(x.shape[2], x.shape[3])
    out = _empty(x, len(x), lanes * filters, rows, columns)
    _launch(convolve_kernel, (len(x) * rows * columns, filters), x, w, out, geometry, products, (x, w, out))
    return out


def of_input(g: Tensor, w: Tensor, geometry: Geometry, size: tuple[int, int], products: str) -> Tensor:
    """The gradient of the images, of height and width `size`, from that of the outputs."""
    lanes, channels = w.shape[0], w.shape[4]
    out = _empty(g, len(g), lanes * channels, *size)
    _launch(of_input_kernel, (len(g) * size[0] * size[1], channels), g, w, out, geometry, products, (out, w, g))
    return out


def of_weight(g: Tensor, x: Tensor, geometry: Geometry, lanes: int, products: str) -> Tensor:
    """The gradient of the weights from that of the outputs."""
    filters, channels = g.shape[1] // lanes, x.shape[1] // lanes
    out = x.new_empty(lanes, filters, *geometry.kernel, channels)
    taps = geometry.kernel[0] * geometry.kernel[1]
    _launch(of_weight_kernel, (filters, channels), g, x, out, geometry, products, (x, out, g), times=taps)
    return out


def block_sizes(kind: torch.dtype, products: str, *, even: bool) -> dict[str, int]:
    """Rows, columns and depth of the blocks that a program multiplies, such that its registers suffice.

    Args:
        even: whether channels and filters are multiples of 16; otherwise, as in the first layer, numbers are loaded one
            by one, which needs more registers.
    """
    rows = 128 if even and (kind == torch.bfloat16 or products != "ieee") else 64
    return {"BLOCK_M": rows, "BLOCK_N": 64, "BLOCK_K": (64 if even else 32) * 2 // kind.itemsize}


def _launch(
    kernel: Any,
    extent: tuple[int, int],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    geometry: Geometry,
    products: str,
    like: tuple[Tensor, Tensor, Tensor],
    times: int = 1,
) -> None:
    """Run a kernel on the inputs `a` and `b` for all lanes.

    Args:
        products: how float32 is multiplied, in Triton's words.
        extent: numbers of rows and columns of the product.
        like: images, weights and outputs, for their sizes.
        times: number of such products per lane.
    """
    x, w, y = like
    channels, filters = w.shape[4], w.shape[1]
    blocks = block_sizes(x.dtype, products, even=channels % 16 == filters % 16 == 0)
    grid = times * triton.cdiv(extent[0], blocks["BLOCK_M"]), triton.cdiv(extent[1], blocks["BLOCK_N"]), len(w)
    sizes = len(x), channels, *x.shape[2:], filters, *y.shape[2:]
    shape = (*geometry.kernel, *geometry.stride, *geometry.padding, products)
    kernel[grid](_in_order(a), _in_order(b), out, *sizes, *shape, *blocks.values(), **OPTIONS)


def _in_order(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.contiguous_format)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
