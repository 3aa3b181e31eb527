"""Grids as dictionaries: what a file of the same content means, with problems named by their place."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bench
from bench.config import yaml_lines
from bench.config.grid import builtin_grids, grid_of, load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.config.validation import complete
from bench.errors import UserError
from bench.plugin import DATASETS
from bench.settings import Settings

scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars
    | st.from_regex(r"[-+]?[0-9.e~xo]{1,4}|no|null|true", fullmatch=True)
    | st.text(st.characters(exclude_categories=["C"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcd", min_size=1), inner, max_size=3),
    max_leaves=12,
)


@example({"key": ["1e3", "-2E-1", "0o7", "no", "~", "2024-01-01", "=", "<<", ""]})
@given(values.map(lambda value: {"key": value}))
def test_values_are_those_that_a_file_would_hold(value: dict[str, Any]) -> None:
    """And what `run.json` keeps of them is read as the same: also text such as `1e-3`, `no`, `~` or `0o7`."""
    document, text = yaml_lines.of_values(value, "grid")
    document.check()
    assert document.data == value
    assert yaml_lines.parse(text, "grid").data == value


def test_python_s_own_types_become_those_of_a_file(tmp_path: Path) -> None:
    """Tuples, paths, scalars of numpy, and numbers as keys."""
    value = {"seeds": (0, np.int64(1)), "path": tmp_path / "x.npz", "lr": np.float32(0.5), "late": {3: np.bool_(True)}}
    document, _ = yaml_lines.of_values(value, "grid")
    document.check()
    assert document.data == {"seeds": [0, 1], "path": str(tmp_path / "x.npz"), "lr": 0.5, "late": {"3": True}}
    assert [type(one) for one in document.data["seeds"]] == [int, int]


QUICK_GRIDS = ("quickstart", "table4")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK_GRIDS else pytest.mark.long) for name in builtin_grids()]
)
def test_a_dictionary_gives_the_cells_of_its_file(name: str, tmp_path: Path) -> None:
    from_file = load_grid(name)
    content = yaml_lines.parse(from_file.source, name).data
    from_values = load_grid(content)
    assert from_values.cells == from_file.cells
    (tmp_path / "again.yaml").write_text(from_values.source, encoding="utf-8")  # what run.json keeps of it
    assert load_grid(str(tmp_path / "again.yaml")).cells == from_file.cells


WRONG: list[tuple[dict[Any, Any], str]] = [
    ({"methods": ["fedavg", "fedvag"]}, "grid['methods'][1]: unknown method 'fedvag'. Did you"),
    (
        {"methods": [{"name": "ditto", "lamb": 1.0}]},
        "grid['methods'][0]['lamb']: unknown hyperparameter 'lamb' of 'ditto'. Did you mean 'lam'?",
    ),
    ({"round": 3}, "grid['round']: unknown key 'round'. Did you mean"),
    ({"lr": -1}, "grid['lr']: lr = -1 should be greater than 0"),
    ({"lr": math.nan}, "grid['lr']: lr = \".nan\" should be a number"),
    ({"methods": [Settings]}, "grid: <class 'bench.settings.Settings'> (ModelMetaclass) is no value that a"),
    ({"seeds": np.arange(2)}, "grid: [0 1] (ndarray) is no value that a grid can hold"),
    ({(1, 2): 3}, "grid['1,2']: unknown key '1,2'."),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG)
def test_a_problem_is_named_by_its_place(changes: dict[Any, Any], expected: str) -> None:
    with pytest.raises(UserError) as error:
        load_grid({"methods": ["fedavg"], "datasets": ["digits"], "alphas": [1.0], **changes})
    assert any(expected in line for line in str(error.value).splitlines()), error.value


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UserError, match="nested deeper than 16 levels"):
        load_grid({"methods": endless})


CHANGE = {"timeline": ({"round": 3, "add_classes": 1},)}
MADE: list[tuple[dict[str, Any], str]] = [
    ({"method": "fedvag"}, "unknown method 'fedvag'. Did you mean 'fedavg'?"),
    ({"method": "ditto", "hp": {"lamb": 1.0}}, "unknown hyperparameter 'lamb' of 'ditto'. Did you"),
    ({"method": "ditto", "hp": {"lam": -1.0}}, "lam = -1.0 should be greater than or equal to 0"),
    ({"dataset": "digit"}, "unknown data set 'digit'. Did you mean 'digits'?"),
    ({"partition_options": {"skew": 1}}, "unknown option 'skew' of partition 'dirichlet'"),
    ({"model": "mlpp"}, "unknown model 'mlpp'. Did you mean 'mlp'?"),
    ({"selection": "unifrom"}, "unknown selection 'unifrom'. Did you mean 'uniform'?"),
    ({"server": {"name": "fedbuf"}}, "unknown server rule 'fedbuf'. Did you mean"),
    ({"shifts": ({"name": "rotatoin"},)}, "unknown shift 'rotatoin'. Did you mean"),
    ({"channel": ({"name": "topk"},)}, "unknown channel 'topk'. Did you mean 'top_k'?"),
    ({"attack": {"name": "signflip"}}, "unknown attack 'signflip'. Did you mean 'sign_"),
    ({"attack": {"name": "noise", "share": 1}}, "share = 1 should be less than"),
    ({"tests": ("triggered",)}, "triggered needs a cell with an attack"),
    ({"method": "centralized", "channel": ({"name": "sign"},)}, "sends no messages"),
    ({"alpha": None}, "the partition 'dirichlet' needs alpha"),
    ({"method": "feddf"}, "the method 'feddf' needs public samples"),
    ({"client_models": ("mlp", "cnn")}, "must have one architecture"),
    ({"server": {"name": "fedbuff", "buffer": "\udcff"}}, "is not text in UTF-8"),
    ({"channel": [{"name": "top_k", "share": "\udcff"}]}, "is not text in UTF-8"),
    ({"model_options": {"hidden": "\udcff"}}, "is not text in UTF-8"),
    ({**CHANGE, "attack": {"name": "sign_flip"}}, "attack: clients whose data change"),
    ({**CHANGE, "normalise": "pooled"}, "take out `timeline` or `normalise`"),
    ({"attack": {"name": "backdoor"}, "normalise": "per_client"}, "take out `attack` or `normalise`"),
]


@pytest.mark.parametrize(("given", "expected"), MADE)
def test_settings_are_checked_where_a_user_makes_them(given: dict[str, Any], expected: str) -> None:
    """Not where somebody else's run is read, whose method need not be known here."""
    cell: dict[str, Any] = {"method": "fedavg", "alpha": 1.0, **given}
    with pytest.raises(UserError) as error:
        bench.Settings(**cell)
    assert expected in str(error.value)
    assert Settings(**cell).name == cell["method"]


@pytest.mark.parametrize(
    "given",
    [
        {"attack": {"name": "backdoor"}, "tests": ({"name": "triggered"},)},  # the trigger is the attack's default
        {"attack": {"name": "label_flip"}, "normalise": "pooled"},
        {"attack": {"name": "sign_flip"}, "normalise": "pooled"},
    ],
    ids=str,
)
def test_settings_that_may_stand_beside_each_other(given: dict[str, Any]) -> None:
    assert bench.Settings(method="fedavg", alpha=1.0, **given).attack is not None


def test_settings_that_are_made_are_those_of_a_grid() -> None:
    """With all defaults, equal to them, and so with their ids."""
    grid = load_grid({"methods": [{"name": "ditto", "lam": 0.5}], "datasets": ["digits"], "alphas": [0.1], "rounds": 3})
    made = bench.Settings(method="ditto", hp={"lam": 0.5}, alpha=0.1, rounds=3)
    (cell,) = grid.cells
    assert made.hp == cell.hp
    assert made == cell.model_copy(update={"label": ""})
    assert cell.model_copy(update={"label": ""}) == made
    (again,) = grid_of([made], "one").cells
    ids = {cell_id(one, declared_checksum(one)) for one in (cell, made, again)}
    assert len(ids) == 1
    assert repr(made).startswith("Settings(method='ditto'")
    assert grid_of([Settings(method="ditto", alpha=0.1)], "one").cells[0].hp["lam"] is not None


def test_options_that_are_nested_too_deeply_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    options = {"path": "t", "label_column": "a", "leave_out": deep}
    with pytest.raises(UserError):
        bench.Settings(method="fedavg", alpha=1.0, dataset="csv", dataset_options=options)


class Rows:
    """No type that JSON knows."""


def odd(
    *, data_root: Path, download: bool, path: str, copy: int = 1, json: "int" = 2,
    model_fields: tuple[float, ...] = (1,), rows: Rows | None = None, anything: Any = None, **others: Any,
) -> None:  # fmt: skip
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
