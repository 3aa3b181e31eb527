"""FedBN: which layers stay with the clients; the table of reductions says what becomes of the others."""

from typing import Any

import torch
from torch import Tensor, nn

from bench.plugin import MODELS
from tests.engine.problems import run, toy


class _Odd(nn.Module):
    """A linear layer called `bn`, and a normalisation of batches whose name does not tell."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.bn = nn.Linear(inputs, 6)
        self.down = nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6))
        self.head = nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.down(self.bn(x.flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


@MODELS.register("test_odd_names")
def odd_names(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Layers whose names mislead."""
    return _Odd(shape[0], classes)


def parts(federation: Any, i: int) -> dict[str, Tensor]:
    """Named tensors of a client's personalized model, as the evaluation gets it."""
    found: dict[str, Tensor] = federation.evaluator.personal(federation.version)[i].tensors()
    return found


def test_layers_are_known_by_type_not_by_name() -> None:
    """Clients differ in both normalisations, running statistics included, and in nothing else."""
    federation = toy("fedbn", model="test_odd_names", sizes=[9, 5])
    run(federation, 2)
    a, b = parts(federation, 0), parts(federation, 1)
    differ = {name for name in a if not torch.equal(a[name], b[name])} - {"down.0.num_batches_tracked"}
    assert differ == {f"down.{name}" for name in (
        "0.weight", "0.bias", "0.running_mean", "0.running_var", "1.weight", "1.bias")}  # fmt: skip
