"""A model that is defined anew under its old name, as a notebook does, runs as if the earlier one had never been."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor, nn

import bench
from bench.plugin import INTERACTIVE, MODELS, Registry


def define(scale: float) -> None:
    """Define the model `scaled` in a notebook's cell; another scale is other code, with the same names and shapes."""

    class Scaled(nn.Module):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None:
            super().__init__()
            self.head = nn.Linear(64, classes)

        def features(self, x: Tensor) -> Tensor:
            return scale * x.flatten(1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.features(x))
            return out

    Scaled.__module__, Scaled.__qualname__ = "a_notebook", "Scaled"
    MODELS.register("scaled")(Scaled)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    MODELS.drop("scaled")
    INTERACTIVE.pop((MODELS.kind, "scaled"), None)


def scores(scale: float, **settings: Any) -> list[tuple[Any, ...]]:
    """The scores of one round with the model, defined anew."""
    define(scale)
    cell = {"method": "fedavg", "dataset": "digits", "alpha": 1.0, "clients": 5, **settings}
    federation = bench.Federation.of(bench.Settings(model="scaled", **cell))
    federation.advance()
    return [tuple(row.values()) for row in federation.evaluate().metrics]


@pytest.mark.parametrize(
    "settings",
    [{}, {"method": "fedrod"}, {"method": "fedprox"}, {"frozen": ["head.weight"]}],
    ids=lambda settings: str(*settings.values()) or "fedavg",
)
def test_the_earlier_definition_leaves_nothing(settings: dict[str, Any]) -> None:
    """Composed predictors (FedRoD's), networks whose frozen tensors are equal, and trainings are of the later one."""
    first = scores(3.0, **settings)
    second = scores(0.1, **settings)
    assert second != first
    Registry.generation += 1_000  # as in a process that has seen neither
    assert scores(0.1, **settings) == second
    assert scores(3.0, **settings) == first


def test_the_same_factory_again_is_the_same_generation() -> None:
    """Loading a file's registrations twice gives up nothing that was recorded."""
    define(1.0)
    before = Registry.generation
    MODELS.register("scaled")(MODELS.get("scaled"))
    assert Registry.generation == before
