"""The Triton kernels of `bench/engine/lanes/norm_relu.py`.

Samples are `[samples, channels, height, width]` in the channels-last memory format, where channels are those of all
lanes. Each program has some channels: it goes over all their pixels once for sums, and once more for the results. Sums
are float32. Where batches have padding, `mask [lanes, samples]` is 0 for it, and the statistics leave it out.

Parameters and running statistics are `[lanes, width]` in rows that are further apart, because they are slices of the
networks' weights; a pitch is the distance of two rows.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bench.engine.lanes.common import in_order

BLOCKS = {"BLOCK_M": 128, "BLOCK_C": 16}
"""Pixels and channels; 16 channels in bfloat16 are the least that a GPU reads at a time."""
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}


PITCHES = ["weight_pitch", "bias_pitch", "mean_pitch", "var_pitch"]


@triton.jit(do_not_specialize=["pixels", "places", "width", *PITCHES])
def forward_kernel(
    x, residual, mask, weight, bias, mean, var, out, new_mean, new_var, batch_mean, batch_scale, pixels, channels,
    places, width, weight_pitch, bias_pitch, mean_pitch, var_pitch, momentum, eps,
    RESIDUAL: tl.constexpr, MASKED: tl.constexpr, RELU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The outputs of some channels, and their statistics."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane, within = (c // width).to(tl.int64), c % width
    real, row = c < channels, mask + lane * (pixels // places)
    count = tl.zeros((BLOCK_C,), tl.float32) + pixels
    # Sums of differences from the first pixel, because squares of large means would leave few digits for the variance.
    first = tl.load(x + c, real, 0.0).to(tl.float32)
    total, squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32), tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    counts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(0, pixels, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        inside = (m < pixels)[:, None] & real[None, :]
        away = tl.load(x + m[:, None] * channels + c[None, :], inside, 0.0).to(tl.float32) - first[None, :]
        if MASKED:
            weights = tl.load(row[None, :] + m[:, None] // places, inside, 0.0)
            counts += weights
            inside = inside & (weights > 0)
        away = tl.where(inside, away, 0.0)
        total += away
        squares += away * away
    if MASKED:
        count = tl.sum(counts, 0)
    away = tl.sum(total, 0) / count
    spread = tl.maximum(tl.sum(squares, 0) / count - away * away, 0.0)
    middle, scale = first + away, tl.rsqrt(spread + eps)
    tl.store(batch_mean + c, middle, real)
    tl.store(batch_scale + c, scale, real)
    running = tl.load(mean + lane * mean_pitch + within, real, 0.0)
    tl.store(new_mean + c, running + momentum * (middle - running), real)
    running = tl.load(var + lane * var_pitch + within, real, 0.0)
    tl.store(new_var + c, running + momentum * (spread * (count / (count - 1)) - running), real)
    scale = scale * tl.load(weight + lane * weight_pitch + within, real, 0.0)
    offset = tl.load(bias + lane * bias_pitch + within, real, 0.0)
    for start in range(0, pixels, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        inside, at = (m < pixels)[:, None] & real[None, :], m[:, None] * channels + c[None, :]
        value = (tl.load(x + at, inside, 0.0).to(tl.float32) - middle[None, :]) * scale[None, :] + offset[None, :]
        if RESIDUAL:
            value += tl.load(residual + at, inside, 0.0).to(tl.float32)
        if RELU:
            value = tl.where(value > 0, value, 0.0)
        tl.store(out + at, value.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["pixels", "places", "width", "weight_pitch"])
def backward_kernel(
    g, x, out, mask, weight, batch_mean, batch_scale, of_x, of_weight, of_bias, of_residual, pixels, channels, places,
    width, weight_pitch,
    RESIDUAL: tl.constexpr, MASKED: tl.constexpr, RELU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradients of some channels. What the ReLU lets pass is the gradient of the residual."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane, within = (c // width).to(tl.int64), c % width
    real, row = c < channels, mask + lane * (pixels // places)
    count = tl.zeros((BLOCK_C,), tl.float32) + pixels
    middle, scale = tl.load(batch_mean + c, real, 0.0), tl.load(batch_scale + c, real, 0.0)
    total, products = tl.zeros((BLOCK_M, BLOCK_C), tl.float32), tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    counts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(0, pixels, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        inside, at = (m < pixels)[:, None] & real[None, :], m[:, None] * channels + c[None, :]
        passed = tl.load(g + at, inside, 0.0).to(tl.float32)
        if RELU:
            passed = tl.where(tl.load(out + at, inside, 0.0) > 0, passed, 0.0)
        if MASKED:
            counts += tl.load(row[None, :] + m[:, None] // places, inside, 0.0)
        total += passed
        products += passed * (tl.load(x + at, inside, 0.0).to(tl.float32) - middle[None, :])
    of_offset, of_scale = tl.sum(total, 0), tl.sum(products, 0) * scale
    tl.store(of_bias + c, of_offset, real)
    tl.store(of_weight + c, of_scale, real)
    slope = scale * tl.load(weight + lane * weight_pitch + within, real, 0.0)
    if MASKED:
        count = tl.sum(counts, 0)
    level, tilt = of_offset / count, of_scale * scale / count
    for start in range(0, pixels, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        inside, at = (m < pixels)[:, None] & real[None, :], m[:, None] * channels + c[None, :]
        passed = tl.load(g + at, inside, 0.0).to(tl.float32)
        if RELU:
            passed = tl.where(tl.load(out + at, inside, 0.0) > 0, passed, 0.0)
        away = tl.load(x + at, inside, 0.0).to(tl.float32) - middle[None, :]
        by_statistics = level[None, :] + away * tilt[None, :]
        if MASKED:  # what padding holds moves no statistics
            by_statistics *= tl.load(row[None, :] + m[:, None] // places, inside, 0.0)
        slopes = (passed - by_statistics) * slope[None, :]
        tl.store(of_x + at, slopes.to(of_x.dtype.element_ty), inside)
        if RESIDUAL:
            tl.store(of_residual + at, passed.to(of_residual.dtype.element_ty), inside)


def forward(
    x: Tensor,
    residual: Sequence[Tensor],
    mask: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, new running mean and variance, and the batch's mean and 1 / standard deviation."""
    x, *residual = map(in_order, (x, *residual))
    out = torch.empty_like(x)
    statistics = [weight.new_empty(weight.shape) for _ in range(4)]
    parameters = [_in_rows(t) for t in (weight, bias, mean, var)]
    forward_kernel[_grid(x)](
        x, residual[0] if residual else x, mask[0].contiguous() if mask else x, *parameters, out, *statistics,
        *_sizes(x, weight), *(t.stride(0) for t in parameters), momentum, eps, bool(residual), bool(mask), relu,
        **BLOCKS, **OPTIONS,
    )  # fmt: skip
    return out, statistics[0], statistics[1], statistics[2], statistics[3]


def backward(
    g: Tensor,
    x: Tensor,
    out: Tensor,
    mask: Sequence[Tensor],
    weight: Tensor,
    batch_mean: Tensor,
    batch_scale: Tensor,
    has_residual: bool,
    relu: bool,
) -> list[Tensor]:
    """The gradients of samples, weight, bias and, where there is one, the residual."""
    g, x, out = map(in_order, (g, x, out))
    weight = _in_rows(weight)
    gradients = [torch.empty_like(x), weight.new_empty(weight.shape), weight.new_empty(weight.shape)]
    gradients += [torch.empty_like(g)] if has_residual else []
    backward_kernel[_grid(x)](
        g, x, out, mask[0].contiguous() if mask else x, weight, batch_mean.contiguous(), batch_scale.contiguous(),
        *gradients[:3], gradients[-1], *_sizes(x, weight), weight.stride(0), has_residual, bool(mask), relu,
        **BLOCKS, **OPTIONS,
    )  # fmt: skip
    return gradients


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.shape[1], BLOCKS["BLOCK_C"]),)


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    """Numbers of pixels, of channels, of pixels of a sample, and of channels of a lane."""
    places = x.shape[2] * x.shape[3]
    return len(x) * places, x.shape[1], places, weight.shape[1]


def _in_rows(t: Tensor) -> Tensor:
    """Parameters whose rows may be further apart than they are long."""
    return t if t.stride(1) == 1 else t.contiguous()
