"""What clients send and receive in the first two rounds, of methods that differ between rounds or keep some layers."""

from typing import Any

import pytest

from tests.engine.problems import run, toy

D = 21  # entries of `test_linear`, a matrix of 3 x 4 and one of 3 x 3
OTHER_LAYERS = (4 * 6 + 6) + (6 * 3 + 3)  # of `test_norm`; its normalisation of 6 channels stays
NORM = {"model": "test_norm"}


@pytest.mark.parametrize(
    ("method", "settings", "first", "second"),
    [
        # A mask takes a byte for each parameter; from the second round on the collaborators' mean comes down, too.
        ("fedcac", {}, (D + D / 8, D), (D + D / 8, 2 * D)),
        ("fedkd", {"hp": {"start": 0.01, "end": 0.01}}, (7 + 6, 0), (7 + 6, 7 + 6)),  # both matrices of rank one
        ("fedkd", {"hp": {"start": 1.0, "end": 1.0}}, (D, 0), (D, D)),
        ("fedfomo", {"hp": {"models": 2}}, (D, 0), (D + 2, 2 * D)),  # weights of the models received
        ("fedbn", NORM, (OTHER_LAYERS, OTHER_LAYERS), (OTHER_LAYERS, OTHER_LAYERS)),
        # Means and deviations of six channels travel once.
        ("fedap", {**NORM, "hp": {"warmup": 0}}, (OTHER_LAYERS + 2 * 6, OTHER_LAYERS), (OTHER_LAYERS, OTHER_LAYERS)),
    ],
)
def test_scalars_per_client(
    method: str, settings: dict[str, Any], first: tuple[float, float], second: tuple[float, float]
) -> None:
    """(Up, down), of eight bytes each."""
    federation = toy(method, sizes=[9, 5, 7], **settings)
    run(federation, 2)
    found = [(row["up"] / 24, row["down_receivers"] / 24) for row in federation.ledger]
    assert found == [first, second]
