"""A change of numbers, or of who a cell is, is seen: this is red until it is said that it is meant."""

from pathlib import Path

import pytest

from bench.runs.cell_federation import last_recordings, recordings_key
from tests.golden.pins import (
    CELLS,
    COMMAND,
    DEFAULTS,
    DIGESTS,
    IDS,
    OPTIONS,
    ROUNDED,
    defaults,
    golden_id,
    grid_ids,
    read,
    run,
    unrounded,
)

RAISE = (
    "If the change of numbers is meant, raise RESULT_VERSION in bench/config/identity.py, so that cells which were "
    f"computed before are computed again, and pin the new numbers with `{COMMAND}`."
)
ORPHANED = (
    "Finished cells with these ids would be computed again. If their numbers are the same as before, keep their ids "
    "(the default of a new setting should mean what happened without it); if an id is to change, pin the new ones with "
    f"`{COMMAND}`."
)
ABSENT = object()
PROMISE = (
    "Ids leave defaults out, and finished cells rest on them. With another default the old ids would stand for other "
    "numbers: keep it, or raise RESULT_VERSION in bench/config/identity.py, which changes all ids. With another name "
    "the cells that set it would have other ids: keep the name. What is new, or meant, is pinned with "
    f"`{COMMAND}` (docs/versions.md)."
)
FLIPPED = (
    "If only `clients correct` and `hits bits` differ, a sample so close to a class boundary that rounding decides may "
    "have changed its class on this processor."
)


@pytest.fixture(scope="module", params=CELLS)
def cell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, str]]:
    """A pinned cell that was run here: its name, its path, the checksums of its columns."""
    return request.param, *run(request.param, tmp_path_factory.mktemp("cell"))


def test_no_number_changes_unseen(cell: tuple[str, str, dict[str, str]]) -> None:
    """On any path, also one that is not pinned."""
    name, path, found = cell
    pinned = read(DIGESTS)[name]
    assert golden_id(name) == pinned["id"], ORPHANED
    right = unrounded(pinned["digests"])
    advice = RAISE if path in pinned["digests"] else f"{RAISE} {FLIPPED}"
    assert [column for column in right if found.get(column) != right[column]] == [], advice


def test_no_rounded_number_changes_unseen(cell: tuple[str, str, dict[str, str]]) -> None:
    name, path, found = cell
    right = read(DIGESTS)[name]["digests"].get(path)
    columns = sorted(ROUNDED)
    if right is None:
        pytest.skip(f"{' and '.join(columns)} have no digests for this path ({path}): add them with `{COMMAND}`")
    assert [column for column in columns if found.get(column) != right[column]] == [], RAISE


@pytest.mark.parametrize("name", CELLS)
def test_pinned_paths_differ_in_rounded_columns_only(name: str) -> None:
    paths = read(DIGESTS)[name]["digests"]
    right = unrounded(paths)
    for path, digests_here in paths.items():
        differ = [column for column in digests_here.keys() - ROUNDED if digests_here[column] != right[column]]
        assert differ == [], (path, FLIPPED)


def test_a_recorded_cohort_was_recorded(tmp_path: Path) -> None:
    """Else its numbers would say nothing of recordings."""
    last_recordings.cache_clear()
    run("recorded cohort", tmp_path)
    settings = CELLS["recorded cohort"]
    kept = last_recordings(*recordings_key(settings, OPTIONS.device))
    assert any(step._recorded for (_, alone), step in kept.steps.items() if not alone)


def test_no_cell_of_a_grid_is_orphaned() -> None:
    pinned, found = read(IDS), grid_ids()
    assert [grid for grid in pinned if found.get(grid) != pinned[grid]] == [], ORPHANED


def test_no_default_changes_and_no_setting_is_renamed_unseen() -> None:
    pinned, found = read(DEFAULTS), defaults()
    changes = [
        f"{of}: {key}: {pinned.get(of, {}).get(key, 'absent')} -> {found.get(of, {}).get(key, 'absent')}"
        for of in sorted(pinned.keys() | found.keys())
        for key in sorted(pinned.get(of, {}).keys() | found.get(of, {}).keys())
        if pinned.get(of, {}).get(key, ABSENT) != found.get(of, {}).get(key, ABSENT)
    ]
    assert changes == [], PROMISE
