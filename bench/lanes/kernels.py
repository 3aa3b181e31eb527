"""Triton kernels: a convolution of every lane with weights of its own, as products of matrices in tensor cores.

The columns that such a product is of ("im2col") are put together on the chip, block by block, and never written to
memory. Numbers are bfloat16 and are added up in float32. How a product is cut into blocks depends on nothing but the
constants below, so equal inputs have equal results.

Shapes: pictures `[samples, lanes * channels, height, width]`, convolved ones `[samples, lanes * filters, rows,
columns]`, both with the channels of a place side by side in memory; weights `[lanes, filters, kernel height, kernel
width, channels]`. A tap is a place in the kernel.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.lanes.geometry import Geometry

BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64}
ODD_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
"""Where channels are no multiple of 16, as in the first layer: they are read one by one, which takes registers."""
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}
"""Fusing a product and a sum is Triton 3.9's default, too, and no longer 3.10's."""


@triton.jit
def convolve_kernel(
    x, w, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`out[m, o]` is the sum over taps and channels of `x * w`, with `m` a place in a convolved picture."""
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
        total = tl.dot(cut, weights, total)
    at = (m * lanes + lane) * filters
    tl.store(
        out + at[:, None] + o[None, :], total.to(out.dtype.element_ty), (n < samples)[:, None] & (o < filters)[None, :]
    )


@triton.jit
def of_input_kernel(
    g, w, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`out[m, c]` is the sum over taps and filters of `g * w`, with `m` a place in a picture."""
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
        total = tl.dot(slopes, weights, total)
    at = (m * lanes + lane) * channels
    tl.store(
        out + at[:, None] + c[None, :], total.to(out.dtype.element_ty), (n < samples)[:, None] & (c < channels)[None, :]
    )


@triton.jit
def of_weight_kernel(
    g, x, out, samples, channels, height, width, filters, rows, columns,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr, PADDING_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """`out[o, c]` of one tap is the sum of `g[m, o] * x[m, c]` over all places `m` of all convolved pictures."""
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
        total = tl.dot(tl.trans(slopes), cut, total)
    at = ((lane * filters + o) * taps + tap) * channels
    tl.store(
        out + at[:, None] + c[None, :], total.to(out.dtype.element_ty), (o < filters)[:, None] & (c < channels)[None, :]
    )


def convolve(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Every lane's pictures convolved with its weights."""
    lanes, filters = w.shape[:2]
    rows, columns = geometry.output(x.shape[2], x.shape[3])
    out = _empty(x, len(x), lanes * filters, rows, columns)
    _launch(convolve_kernel, (len(x) * rows * columns, filters), x, w, out, geometry, (x, w, out))
    return out


def of_input(g: Tensor, w: Tensor, geometry: Geometry, size: tuple[int, int]) -> Tensor:
    """What a gradient of the convolved pictures is for the pictures, whose height and width are given."""
    lanes, channels = w.shape[0], w.shape[4]
    out = _empty(g, len(g), lanes * channels, *size)
    _launch(of_input_kernel, (len(g) * size[0] * size[1], channels), g, w, out, geometry, (out, w, g))
    return out


def of_weight(g: Tensor, x: Tensor, geometry: Geometry, lanes: int) -> Tensor:
    """What a gradient of the convolved pictures is for the weights."""
    filters, channels = g.shape[1] // lanes, x.shape[1] // lanes
    out = x.new_empty(lanes, filters, *geometry.kernel, channels)
    taps = geometry.kernel[0] * geometry.kernel[1]
    _launch(of_weight_kernel, (filters, channels), g, x, out, geometry, (x, out, g), times=taps)
    return out


def _launch(
    kernel: Any,
    extent: tuple[int, int],
    a: Tensor,
    b: Tensor,
    out: Tensor,
    geometry: Geometry,
    like: tuple[Tensor, Tensor, Tensor],
    times: int = 1,
) -> None:
    """Run a kernel on two inputs, in every lane.

    Args:
        extent: rows and columns of the product.
        like: pictures, weights and convolved pictures, for their sizes.
        times: how many such products there are.
    """
    x, w, y = like
    channels, filters = w.shape[4], w.shape[1]
    blocks = ODD_BLOCKS if channels % 16 or filters % 16 else BLOCKS
    grid = times * triton.cdiv(extent[0], blocks["BLOCK_M"]), triton.cdiv(extent[1], blocks["BLOCK_N"]), len(w)
    sizes = len(x), channels, *x.shape[2:], filters, *y.shape[2:]
    shape = (*geometry.kernel, *geometry.stride, *geometry.padding)
    kernel[grid](_in_order(a), _in_order(b), out, *sizes, *shape, *blocks.values(), **OPTIONS)


def _in_order(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.contiguous_format)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
