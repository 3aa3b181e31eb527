"""Methods whose clients may have models of different architectures: they train, and only what all can read travels."""

from typing import Any

import pytest

from tests.engine.problems import run, toy
from tests.methods.reference import PUBLIC

C = 3
D = 21  # entries of `test_linear`
OUTPUTS = len(PUBLIC.y) * C  # of all public samples
MEANS = C * 6 + C  # of classes in a space of six features, and counts
MIXED = {"client_models": ["test_norm", "test_linear"]}
SIX = {"model": "mlp", "model_options": {"hidden": 6}, "client_models": ["mlp", "test_norm"]}
"""Models of different bodies whose features have one width."""


@pytest.mark.parametrize(
    ("method", "settings", "up", "down"),
    [
        ("comet", {**MIXED, "hp": {"c": 2}}, OUTPUTS, 2 * OUTPUTS),
        ("dsfl", MIXED, OUTPUTS, OUTPUTS),
        ("fd", MIXED, C * C + C, C * C + C),
        ("fedgh", SIX, MEANS, 6 * C + C),  # up class means, down the head
        ("fedl2g", MIXED, C * C, C * C),
        ("fedmd", {**MIXED, "hp": {"subset": 7}}, 7 * C, 7 * C),
        ("fedmrl", MIXED, D, D),
        ("fedpcl", SIX, MEANS, 3 * MEANS),  # the global prototypes and those of both clients
        ("fedtgp", SIX, MEANS, MEANS),
        ("fml", MIXED, D, D),
    ],
)
def test_two_architectures(method: str, settings: dict[str, Any], up: int, down: int) -> None:
    """Scalars that a client sends and receives in the third round."""
    federation = toy(method, sizes=[9, 5], public=PUBLIC, **settings)
    run(federation, 3)
    assert len({w.spec.arch for w in federation.evaluator.personal(3).values()}) == 2
    row = federation.ledger[-1]
    assert (row["up"], row["down_receivers"]) == (2 * 8 * up, 2 * 8 * down)
    assert federation.engine.fallbacks == []


@pytest.mark.parametrize("method", ["comet", "fedmd"])
def test_models_of_two_architectures_have_no_mean(method: str) -> None:
    scores = run(toy(method, public=PUBLIC, **MIXED), 1)
    assert {row["metric"] for row in scores.metrics} == {"pm", "lm"}


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("fedgh", MIXED, r"FedGH needs features of one width: test_norm.* has 6, the cell's 3"),
        ("fedl2g", {**MIXED, "hp": {"guide": "features"}}, "needs features of one width"),
        ("fedmrl", {"model": "test_norm", "client_models": ["test_linear"]}, "has 3, the cell's model 6"),
    ],
)
def test_features_of_other_widths_are_refused(method: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        toy(method, sizes=[9, 5], **settings).advance()
