"""Parts that layers for many lanes share: sizes of a convolution, lanes as channels, BatchNorm's derivative."""

from typing import NamedTuple

import torch
from torch import Tensor


class Geometry(NamedTuple):
    """Kernel size, stride and zero padding of a two-dimensional convolution, vertical and horizontal."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the output for an image of this size."""
        rows, columns = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip((height, width), *self, strict=True)
        )
        return rows, columns


def backward_by_hand(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    training: bool,
    eps: float,
    real: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients for samples, weight and bias, written with operations that PyTorch can differentiate.

    Args:
        real: as of `statistics_of`.
    """
    over = [dim for dim in range(x.dim()) if dim != 1]
    count = torch.full_like(weight, x.numel() // x.shape[1])

    def wide(channels: Tensor) -> Tensor:
        return channels.view(1, -1, *([1] * (x.dim() - 2)))

    if training and real is not None:
        mean, var, count = statistics_of(x, real)
    elif training:
        mean, var = x.mean(over), x.var(over, unbiased=False)
    scale = (var + eps).rsqrt()
    unit = (x - wide(mean)) * wide(scale)
    of_weight, of_bias = (gradient * unit).sum(over), gradient.sum(over)
    of_x = gradient
    if training:
        by_statistics = (wide(of_bias) + unit * wide(of_weight)) / wide(count)
        of_x = gradient - (by_statistics if real is None else by_statistics * real)
    return (of_x * wide(scale * weight)).to(gradient.dtype), of_weight, of_bias


def statistics_of(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of each channel over the real samples, and over how many numbers.

    Args:
        x: samples `[samples, channels, ...]`.
        real: 1 for a real sample and 0 for padding, in a shape that goes with `x`.
    """
    over = [dim for dim in range(x.dim()) if dim != 1]
    count = torch.broadcast_to(real, x.shape).sum(over)
    shape = (1, -1, *([1] * (x.dim() - 2)))
    mean = (x * real).sum(over) / count
    var = ((x - mean.view(shape)).square() * real).sum(over) / count
    return mean, var, count


def normalise_by_hand(
    x: Tensor, real: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """Normalise samples by the statistics of the real ones, with operations that PyTorch can differentiate.

    Args:
        x, real: as of `statistics_of`.
        mean, var: running statistics `[channels]`.

    Returns:
        The samples, new running mean and variance, and the batch's mean and 1 / standard deviation.
    """
    wide, shape = x.to(weight.dtype), (1, -1, *([1] * (x.dim() - 2)))
    batch_mean, batch_var, count = statistics_of(wide, real)
    batch_scale = (batch_var + eps).rsqrt()
    out = (wide - batch_mean.view(shape)) * (batch_scale * weight).view(shape) + bias.view(shape)
    moved = mean.lerp(batch_mean, momentum), var.lerp(batch_var * count / (count - 1), momentum)
    return out.to(x.dtype), *moved, batch_mean, batch_scale


def samples_merged(x: Tensor, dim: int | None, lanes: int) -> Tensor:
    """Merge lanes into channels: `[samples, lanes * channels, ...]`."""
    x = x.unsqueeze(1).expand(-1, lanes, *x.shape[1:]) if dim is None else x.movedim(dim, 1)
    return x.flatten(1, 2)


def channels_merged(t: Tensor, dim: int | None, lanes: int) -> Tensor:
    """Merge lanes into channels: `[lanes * channels]`."""
    return (t.expand(lanes, -1) if dim is None else t.movedim(dim, 0)).flatten()


def channels_apart(t: Tensor, lanes: int) -> Tensor:
    """Separate the lanes again: `[lanes, channels]`. Outside training, the batch's own statistics may be empty."""
    return t.view(lanes, t.numel() // lanes)


def in_order(images: Tensor) -> Tensor:
    """Images with the channels of a pixel side by side."""
    return images.contiguous(memory_format=torch.channels_last)
