"""A change of numbers, or of who a cell is, is seen: this is red until it is said that it is meant."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from bench.runs.cell import _last_recordings
from tests.golden.pins import CELLS, COMMAND, DIGESTS, IDS, OPTIONS, digests, golden_id, grid_ids, read, run

RAISE = (
    "If the change of numbers is meant, raise RESULT_VERSION in bench/config/identity.py, so that cells which were "
    f"computed before are computed again, and pin the new numbers with `{COMMAND}`."
)
ORPHANED = (
    "Finished cells with these ids would be computed again. If their numbers are the same as before, keep their ids "
    f"(leave a new setting at its default out of `cell_id`); if an id is to change, pin the new ones with `{COMMAND}`."
)


@pytest.mark.parametrize("name", CELLS)
def test_no_number_changes_unseen(name: str, tmp_path: Path) -> None:
    pinned = read(DIGESTS)[name]
    assert golden_id(name) == pinned["id"], ORPHANED
    path, found = run(name, tmp_path)
    if path not in pinned["digests"]:
        pytest.skip(f"no digests for this path ({path}): add them with `{COMMAND}`")
    right = pinned["digests"][path]
    assert [column for column in right if found.get(column) != right[column]] == [], RAISE


def test_a_recorded_cohort_was_recorded(tmp_path: Path) -> None:
    """Else its numbers would say nothing of recordings."""
    _last_recordings.cache_clear()
    run("recorded cohort", tmp_path)
    settings = CELLS["recorded cohort"]
    kept = _last_recordings(settings.method, json.dumps(settings.hp), settings.dtype, OPTIONS.device)
    assert any(step._recorded for (_, alone), step in kept.steps.items() if not alone)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished cell's folder."""
    folder = tmp_path_factory.mktemp("cell")
    run("synchronous", folder)
    return folder


@pytest.mark.parametrize(("table", "column", "changed"), [
    ("metrics", "value", "loss value"), ("ledger", "seconds", "ledger seconds"),
])  # fmt: skip
def test_one_unit_in_the_last_place_is_seen(
    tables: Path, tmp_path: Path, table: str, column: str, changed: str
) -> None:
    before = digests(tables)
    shutil.copytree(tables, tmp_path, dirs_exist_ok=True)
    rows = pd.read_csv(tmp_path / f"{table}.csv", dtype=str, keep_default_na=False)
    where = rows.index[rows["quantity"] == "loss"][-1] if table == "metrics" else rows.index[-1]
    rows.loc[where, column] = repr(math.nextafter(float(rows.loc[where, column]), math.inf))
    rows.to_csv(tmp_path / f"{table}.csv", index=False)
    after = digests(tmp_path)
    assert [name for name in before if before[name] != after[name]] == [changed]


def test_no_cell_of_a_grid_is_orphaned() -> None:
    pinned, found = read(IDS), grid_ids()
    assert [grid for grid in pinned if found.get(grid) != pinned[grid]] == [], ORPHANED
