"""A small network. Importing this module registers it."""

import math

from torch import Tensor, nn

from bench.plugin import MODELS


class Bottleneck(nn.Module):
    """`head(features(x))`, with a narrow layer between them."""

    def __init__(self, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """`[samples, width]`: what the head sees."""
        return self.body(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """`[samples, classes]` logits."""
        return self.head(self.features(x))


@MODELS.register("bottleneck")
def bottleneck(shape: tuple[int, ...], classes: int, width: int = 8) -> nn.Module:
    """A network with a narrow layer; `width` is an option that a grid may set."""
    return Bottleneck(math.prod(shape), classes, width)
