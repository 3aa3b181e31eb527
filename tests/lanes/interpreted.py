"""Runs the kernels on a CPU in Triton's interpreter, which must be selected before Triton is imported.

Prints, as JSON, the difference from PyTorch's convolution in float64, relative to 1 + the size of the number. The
interpreter has no bfloat16, so the kernels compute in float32.
"""

import json

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn import grad as derivatives

from bench.lanes import kernels
from bench.lanes.geometry import Geometry

# Lanes, samples, channels, filters, height, width, kernel, stride, padding; for full, partial and several blocks.
CASES = (
    (2, 3, 3, 5, 7, 6, (3, 3), (1, 1), (1, 1)),
    (3, 2, 4, 70, 8, 8, (3, 3), (2, 2), (1, 1)),
    (2, 2, 70, 4, 6, 6, (1, 1), (2, 2), (0, 0)),
    (1, 4, 2, 3, 9, 8, (5, 3), (1, 2), (2, 0)),
    (2, 1, 2, 2, 5, 5, (3, 3), (1, 1), (0, 0)),
    (2, 3, 16, 80, 8, 8, (3, 3), (1, 1), (1, 1)),
)


def furthest(case: tuple[int, int, int, int, int, int, tuple[int, int], tuple[int, int], tuple[int, int]]) -> float:
    """The largest error of the three kernels."""
    lanes, samples, channels, filters, height, width, kernel, stride, padding = case
    geometry = Geometry(kernel, stride, padding)
    x, w = torch.randn(samples, lanes * channels, height, width), torch.randn(lanes, filters, *kernel, channels)
    g = torch.randn(samples, lanes * filters, *geometry.output(height, width))
    found = (
        kernels.convolve(x, w, geometry),
        kernels.of_input(g, w, geometry, (height, width)),
        kernels.of_weight(g, x, geometry, lanes),
    )

    def in_lanes(flat: Tensor) -> Tensor:
        return flat.unflatten(0, (lanes, -1)).permute(0, 1, 3, 4, 2)

    wide, flat, slopes = x.double(), w.double().permute(0, 1, 4, 2, 3).flatten(0, 1), g.double()
    right = (
        functional.conv2d(wide, flat, None, stride, padding, groups=lanes),
        derivatives.conv2d_input(wide.shape, flat, slopes, stride, padding, groups=lanes),
        in_lanes(derivatives.conv2d_weight(wide, flat.shape, slopes, stride, padding, groups=lanes)),
    )
    return max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(found, right, strict=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps([furthest(case) for case in CASES]))
