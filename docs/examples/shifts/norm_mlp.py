"""A small network with BatchNorm, which FedBN keeps at the clients; a plug-in of grid.yaml."""

from torch import Tensor, nn

from bench.plugin import MODELS


class NormMLP(nn.Module):
    """Two hidden layers, each followed by BatchNorm."""

    def __init__(self, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """`[samples, width]`."""
        return self.body(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """`[samples, classes]` logits."""
        return self.head(self.features(x))


@MODELS.register("norm_mlp")
def norm_mlp(shape: tuple[int, ...], classes: int, width: int = 100) -> nn.Module:
    """An MLP with BatchNorm."""
    inputs = 1
    for size in shape:
        inputs *= size
    return NormMLP(inputs, classes, width)
