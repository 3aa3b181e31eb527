"""Two runs of one grid."""

import pandas as pd
import pytest

from reports.tables.compare import compare_runs
from tests.reports.conftest import cell_id, cells_of, change_run
from tests.warm import PATIENCE


def _raise_gm(path, gain):
    metrics = pd.read_csv(path, keep_default_na=False)
    place = (metrics[["metric", "on", "split", "quantity"]] == ["gm", "global", "test", "accuracy"]).all(axis=1)
    metrics.loc[place, "value"] += gain
    metrics.to_csv(path, index=False)


def _new_id(run, old):
    change_run(run, cells=[cell | {"id": cell_id("another")} if cell["id"] == old else cell for cell in cells_of(run)])
    (run / old).rename(run / cell_id("another"))


def test_what_changed_is_shown_the_largest_first(store_writer, tmp_path):
    before = store_writer(tmp_path / "a", seeds=2, methods=("fedavg", "scd"), alphas=(1.0,))
    states = {("fedavg", 1.0, 1): "failed"}
    after = store_writer(tmp_path / "b", seeds=2, methods=("fedavg", "scd"), alphas=(1.0,), states=states)
    _raise_gm(after / cell_id("scd-1-0") / "metrics.csv", 0.01)
    _new_id(after, cell_id("scd-1-1"))
    table = compare_runs(before, after)
    assert [(label, entries[1].note) for label, entries in table.rows] == [("fedavg", "1"), ("scd", "0")]
    failed, changed = (entries for _, entries in table.rows)
    assert [entry.note for entry in failed[4:6]] == ["done", "failed"]
    assert [entry.number for entry in changed[8:12:3]] == ["+1.000", "0.000"]


def test_runs_of_different_sizes_match_by_their_cells(store_writer, tmp_path):
    """With one alpha a task is called by its data set alone; its cells are the same all the same."""
    both = store_writer(tmp_path / "both", seeds=2, methods=("scd",), alphas=(1.0, 0.1))
    one = store_writer(tmp_path / "one", seeds=2, methods=("scd",), alphas=(1.0,))
    table = compare_runs(both, one)
    assert table.caption.startswith("4 cells, 2 the same in both runs, 2 that differ")
    assert {entries[5].note for _, entries in table.rows} == {"not in the grid"}
    assert {entries[0].note for _, entries in table.rows} == {"digits, α=0.1"}
    same = compare_runs(one, one)
    assert (same.rows, same.caption[:19]) == ((), "2 cells, 2 the same")
    added = compare_runs(one, both).rows
    assert {(entries[4].note, entries[5].note) for _, entries in added} == {("not in the grid", "done")}
    assert added[0][1][7].value == pytest.approx(74, abs=3)


def test_settings_that_changed_are_named(store_writer, tmp_path):
    """A cell with another learning rate has another id; it is matched by label, task and seed."""
    before, after = (store_writer(tmp_path / name, seeds=1, methods=("scd",), alphas=(1.0,)) for name in "ab")
    change_run(after, lambda _: {"lr": 0.5})
    _new_id(after, cell_id("scd-1-0"))
    ((_, entries),) = compare_runs(before, after).rows
    assert entries[3].note == "lr=0.01 → 0.5"


@pytest.mark.long
def test_the_command_says_what_changed_by_its_status_too(store_writer, start_in, tmp_path):
    same, other = (store_writer(tmp_path / name, seeds=1, methods=("scd",), alphas=(1.0,)) for name in "ab")
    _raise_gm(other / cell_id("scd-1-0") / "metrics.csv", 0.01)
    for after, status, said in (
        (same, 0, "1 the same in both runs"),
        (other, 1, "| scd |"),
        (tmp_path, 2, "is not a run"),
    ):
        with start_in(["compare", str(same), str(after)], tmp_path) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == status
        assert said in out + err
        assert "Traceback" not in err
