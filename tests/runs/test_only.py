"""`--only` finds every cell that a grid can have, by values as grids and tables write them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.config.grid import Grid, load_grid
from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from bench.runs.options import SessionOptions
from bench.runs.plan import select
from bench.runs.session import Session
from bench.runs.workers import LocalRunner
from bench.store.documents import read_run_file
from datasets.assemble import assemble

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


@pytest.mark.parametrize("only", [["method=fedavg", "seed=0", "method=scd"], "method=fedavg,seed=0,method=scd"])
def test_conditions_on_one_setting_are_alternatives_and_none_is_lost(only: Any) -> None:
    cells = select(load_grid({**GRID, "methods": ["fedavg", "local", "scd"]}).cells, only)
    assert [(cell.method, cell.seed) for cell in cells] == [("fedavg", 0), ("scd", 0)]


class Idle(LocalRunner):
    """A runner that trains nothing."""

    def run(self, tasks: Any, on_event: Any, unwanted: Any = ()) -> bool:
        return True


def test_the_data_of_other_cells_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user's own samples, on whose content an id rests, cells are not listed while they are gone; once known,
    their ids stay in `run.json`, so that their results are still shown."""
    file = tmp_path / "own_samples" / "samples.npy"

    def samples(data_root: Path, download: bool) -> Dataset:
        if not file.exists():
            raise UserError("the samples are gone")
        x = np.load(file)
        return assemble("own", x, np.arange(200) % 3, 150, mean=[0.5], std=[0.5])

    monkeypatch.setitem(DATASETS._items, "own_samples", samples)
    gone = {"name": "npz", "path": str(tmp_path / "gone.npz")}
    grid = load_grid({**GRID, "model": "logistic", "datasets": ["digits", "own_samples", gone]})
    assert listed(grid, "dataset=digits", tmp_path) == ["digits", "digits", "npz", "npz"]
    file.parent.mkdir()
    np.save(file, np.random.default_rng(0).integers(0, 255, size=(200, 1, 4, 4), dtype=np.uint8))
    everything = ["digits"] * 2 + ["own_samples"] * 2 + ["npz"] * 2
    assert listed(grid, ["dataset=digits", "dataset=own_samples"], tmp_path) == everything
    before = read_run_file(tmp_path / "run")
    file.unlink()
    assert listed(grid, "dataset=digits", tmp_path) == everything
    after = read_run_file(tmp_path / "run")
    assert before is not None
    assert after is not None
    assert [cell["id"] for cell in after["cells"]] == [cell["id"] for cell in before["cells"]]
    with pytest.raises(UserError, match="gone"):
        listed(grid, (), tmp_path)


def listed(grid: Grid, only: Any, folder: Path) -> list[str]:
    """The data sets of the cells in `run.json` after a session that trained nothing."""
    options = SessionOptions.of({"data_root": folder, "quiet": True, "tracking": False})
    Session(grid, folder / "run", options, only=only).run(Idle(1, "cpu"))
    info = read_run_file(folder / "run")
    assert info is not None
    return [cell["settings"]["dataset"] for cell in info["cells"]]


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
        (["seed=0", "seed=7"], "--only seed=7: none of the 2 cells fits"),
    ],
)
def test_what_fits_no_cell_is_refused(only: Any, said: str) -> None:
    with pytest.raises(UserError, match=r"^--only ") as refused:
        select(load_grid(GRID).cells, only)
    assert said in str(refused.value)
