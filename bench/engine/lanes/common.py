"""What layers for many lanes share: sizes of a convolution, lanes as channels, BatchNorm's derivative by hand."""

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
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, *, training: bool, eps: float
) -> tuple[Tensor, ...]:
    """The gradients for samples, weight and bias, written with operations that PyTorch can differentiate."""
    over = [dim for dim in range(x.dim()) if dim != 1]

    def wide(channels: Tensor) -> Tensor:
        return channels.view(1, -1, *([1] * (x.dim() - 2)))

    if training:
        mean, var = x.mean(over), x.var(over, unbiased=False)
    scale = (var + eps).rsqrt()
    unit = (x - wide(mean)) * wide(scale)
    of_weight, of_bias = (gradient * unit).sum(over), gradient.sum(over)
    of_x = gradient
    if training:
        count = x.numel() // x.shape[1]
        of_x = gradient - (wide(of_bias) + unit * wide(of_weight)) / count
    return (of_x * wide(scale * weight)).to(gradient.dtype), of_weight, of_bias


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
