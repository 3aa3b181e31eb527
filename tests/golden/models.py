"""Two small models for pinned cells. Their code is part of these cells' ids, so they have a file of their own."""

import math

import torch
from torch import Tensor, nn

from bench.plugin import MODELS


class _Model(nn.Module):
    def __init__(self, inner: nn.Module, inputs: int, classes: int) -> None:
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = torch.relu(self.inner(x)).flatten(1)
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_golden_norm")
def norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model with running statistics."""
    return _Model(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 6), nn.BatchNorm1d(6)), 6, classes)


@MODELS.register("test_golden_conv")
def conv(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of one convolution, the kernel for which differs most between processors."""
    return _Model(nn.Conv2d(shape[0], 8, 3, padding=1), 8 * shape[1] * shape[2], classes)
