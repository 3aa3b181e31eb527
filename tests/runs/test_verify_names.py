"""`bench verify` and what is no part of a cell's id: its label, and the score that chooses the reported round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.results.results import load_run
from bench.runs.cell_options import Options
from bench.runs.verify.verify import CellVerdict, check_files
from bench.store import store
from tests.runs.conftest import Bench
from tests.runs.helpers import make_run

METHODS: Any = ["fedavg", {"name": "ditto", "label": "Ours"}]


@pytest.fixture
def run(tmp_path: Path, arrays: Path) -> Path:
    """A run of two cells, of which one has a label."""
    return make_run(tmp_path / "run", arrays, METHODS, rounds=1, options=Options(device="cpu"))


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the entry of each cell in `run.json`."""
    info = store.read_json(run / "run.json")
    for entry in info["cells"]:
        change(entry)
    store.write_json(run / "run.json", info)


def test_methods_that_swapped_their_names_are_wrong(run: Path, bench_here: Bench) -> None:
    """Tables would show each under the other's name."""
    other = {"fedavg": "Ours", "Ours": "fedavg"}
    edit(run, lambda entry: entry.update(label=other[entry["label"]]))
    out = bench_here("verify", run, "--cells", "0", code=1).stdout
    assert "run.json labels it 'Ours', and its settings there are of 'fedavg'" in out
    assert out.count("WRONG") == 2


def test_a_label_that_was_changed_since_is_not_wrong_and_lines_name_the_method(run: Path) -> None:
    """Finished cells keep the label that they ran with in their `settings.json`."""

    def rename(entry: dict[str, Any]) -> None:
        if entry["label"] == "Ours":
            entry["label"] = entry["settings"]["label"] = "New name"
            entry["settings"]["case"] = "a case"

    edit(run, rename)
    failed, sound = check_files([load_run(run)], Path("data"))
    assert failed == []
    names = [CellVerdict(cell, "same", "").name for cell, _ in sound]
    assert names == ["fedavg blobs alpha=1 seed=0", "New name blobs a case alpha=1 seed=0 (method ditto)"]


def test_rounds_that_are_not_chosen_alike_are_named(run: Path, bench_here: Bench) -> None:
    assert "chosen alike" not in bench_here("verify", run, "--cells", "0").stdout
    edit(run, lambda entry: entry["settings"].update(select_by="loss") if entry["label"] == "Ours" else None)
    out = bench_here("verify", run, "--cells", "0").stdout
    assert "the reported rounds are not chosen alike: by accuracy in cells of fedavg; by loss in cells of Ours" in out
