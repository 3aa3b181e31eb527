"""Settings of data that cannot stand beside each other are refused by name, in grids as in Python."""

from pathlib import Path
from typing import Any

import pytest

import bench
from bench.config.grid import load_grid
from bench.config.validation import complete
from bench.errors import UserError
from bench.plugin import DATASETS

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


class Rows:
    """No type that JSON knows."""


def odd(
    *,
    data_root: Path,
    download: bool,
    path: str,
    copy: int = 1,
    json: "int" = 2,
    model_fields: tuple[float, ...] = (1,),
    rows: Rows | None = None,
    anything: Any = None,
    **others: Any,
) -> None:
    """A data set whose options have names that pydantic's models have, and types by name, of its own, and none."""


def test_options_of_a_plugin_may_have_any_names_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    DATASETS.names()  # the others first, so that nothing else is loaded while it is there
    monkeypatch.setitem(DATASETS._items, "odd", odd)
    defaults = {"copy": 1, "json": 2, "model_fields": [1], "rows": None, "anything": None}
    assert complete(DATASETS, "odd", {"path": "a"}) == ({"path": "a", **defaults}, {})
    given = {"path": "a", "copy": 3, "model_fields": [2, 3], "anything": {"a": [1]}}
    assert complete(DATASETS, "odd", given) == ({**defaults, **given, "model_fields": [2.0, 3.0]}, {})
    sound, problems = complete(DATASETS, "odd", {"path": "a", "copy": "3", "jsn": 2})
    assert sound == {"path": "a"}
    assert problems == {
        "copy": 'copy = "3" should be an integer',
        "jsn": "unknown option 'jsn' of data set 'odd'. Did you mean 'json'?",
    }
    assert complete(DATASETS, "odd", {})[1] == {"": "data set 'odd' needs the option 'path'"}
