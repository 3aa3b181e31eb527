"""`--only` finds every cell that a grid can have, by values as grids and tables write them."""

from typing import Any

import pytest

from bench.config.grid import load_grid
from bench.errors import UserError
from bench.runs.plan import select

LABELS = ["no", "1", "ours: a", "*avg", "[x", "a, b", "a", "seed=0, b", '"q"', "~"]
GRID: dict[str, Any] = {"methods": ["fedavg"], "alpha": 1, "seeds": [0, 1]}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("further", ["", ",seed=1", ", seed=1,"])
def test_a_label_is_matched_as_it_is_written(label: str, further: str) -> None:
    """Though YAML would read another value, none, or two; `a` is not `a, b`."""
    methods = [{"name": "fedavg", "label": text} for text in LABELS]
    cells = select(load_grid({**GRID, "methods": methods}).cells, f"label={label}{further}")
    assert [(cell.label, cell.seed) for cell in cells] == [(label, seed) for seed in (0, 1) if seed or not further]


@pytest.mark.parametrize("further", ["", "seed=1,", "method=fedavg, "])
def test_a_case_of_several_settings_is_chosen_by_its_name(further: str) -> None:
    """Both by `case`, whose text has the comma, and by its settings."""
    cells = load_grid({**GRID, "vary": {"lr": [0.1, 0.2], "momentum": [0.5, 0.9]}}).cells
    for wanted in ("case=lr=0.1, momentum=0.5", "lr=0.1, momentum=0.5"):
        for only in (further + wanted, f"{wanted},{further}"):
            assert {(cell.lr, cell.momentum) for cell in select(cells, only)} == {(0.1, 0.5)}
    assert {cell.momentum for cell in select(cells, "momentum=0.9")} == {0.9}


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        ("lr", [0.001, 0.01], "1e-3"),
        ("optimizer", ["adam", "sgd"], "adam"),
        ("optimizer", [{"name": "adam", "eps": 0.5}, "sgd"], "adam"),
        ("optimizer", [{"name": "adam", "eps": 0.5}, "adam"], "{name: adam, eps: 0.5}"),
        ("server", ["fedbuff", "fedopt"], "fedbuff"),
        ("adapters", ["lora", "ia3"], "lora"),
        ("frozen", [["body"], []], "[body]"),
        ("metrics", [["auroc", "ece"], []], "[auroc, ece]"),
        ("wait_free", ["off", "on"], "off"),
        ("nesterov", [True, False], "true"),
        ("steps", [None, 3], "null"),
        ("rounds", [5, 6], "5"),
    ],
)
def test_a_value_may_be_written_as_in_a_grid(key: str, values: list[Any], text: str) -> None:
    varied = load_grid({**GRID, "momentum": 0.0, "seeds": [0], "vary": {key: values}}).cells
    assert select(varied, f"{key}={text}") == varied[:1]
    assert select(varied, f"seed=0,{key}={text}, method=fedavg") == varied[:1]


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("label=*avg", "Did you mean 'fedavg'"),
        ("lr=[", "none of the 2 cells fits"),
        ("label=[x,seed=0", "none of the 2 cells fits"),
        ("method=fedavg,seed", "--only seed: write key=value"),
        ("seed,method=fedavg", "--only seed: write key=value"),
        ("method=fedavg,sed=0", "unknown key 'sed'. Did you mean 'seed'"),
        ("method=fedagv,seed=0", "Did you mean 'fedavg'"),
        ("label=fed, avg", "Did you mean 'fedavg'"),
    ],
)
def test_what_fits_no_cell_is_refused(only: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^--only ") as refused:
        select(load_grid(GRID).cells, only)
    assert said in str(refused.value)
