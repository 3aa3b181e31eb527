"""Settings of data that cannot stand beside each other are refused by name, in grids as in Python."""

from typing import Any

import pytest

import bench
from bench.config.grid import load_grid
from bench.errors import UserError

CHANGE = [{"round": 3, "add_classes": 1}]


@pytest.mark.parametrize(
    ("together", "words"),
    [
        ({"timeline": CHANGE, "attack": "label_flip"}, "attack: clients whose data change"),
        ({"timeline": CHANGE, "attack": "sign_flip"}, "attack: clients whose data change"),
        ({"timeline": CHANGE, "normalise": "pooled"}, "take out `timeline` or `normalise`"),
        ({"attack": "backdoor", "normalise": "per_client"}, "take out `attack` or `normalise`"),
    ],
)
def test_what_cannot_stand_together_is_refused(together: dict[str, Any], words: str) -> None:
    grid = {"methods": ["fedavg"], "datasets": ["digits"], "alphas": [1.0], "rounds": 6, **together}
    with pytest.raises(UserError, match=words):
        load_grid(grid)
    cell = {key: {"name": value} if key == "attack" else value for key, value in together.items()}
    with pytest.raises(UserError, match=words):
        bench.Settings(method="fedavg", dataset="digits", alpha=1.0, rounds=6, **cell)


def test_a_trigger_by_default_may_be_tested() -> None:
    tests = ({"name": "triggered"},)
    cell = bench.Settings(method="fedavg", dataset="digits", alpha=1.0, attack={"name": "backdoor"}, tests=tests)
    assert [test.name for test in cell.tests] == ["triggered"]


@pytest.mark.parametrize("attack", ["label_flip", "sign_flip"])
def test_an_attack_without_a_trigger_may_be_on_normalised_data(attack: str) -> None:
    grid = {"methods": ["fedavg"], "datasets": ["digits"], "alphas": [1.0], "normalise": "pooled", "attack": attack}
    assert load_grid(grid).cells[0].normalise == "pooled"
