"""How well two computations of a league agree."""

import re
from pathlib import Path

import pytest
from scipy import stats

from bench.errors import UserError
from reports.league.compare import compare_leagues
from reports.tables.table import to_markdown
from tests.reports import conftest
from tests.reports.conftest import write_store

OLD = {"scd": 0.95, "ditto": 0.85, "fedper": 0.75, "local": 0.65}
NEW = {"scd": 0.65, "ditto": 0.85, "fedper": 0.75, "local": 0.95}
"""Levels of personalized models, far from each other: the first and the last change places."""


def write_entries(folder: Path, levels: dict[str, float], failed: str = "") -> list[Path]:
    states = {(failed, 1.0, 0): "failed"}
    with pytest.MonkeyPatch.context() as patch:
        for method, level in levels.items():
            patch.setitem(conftest.LEVELS, method, (level, level))
        return [write_store(folder / method, methods=(method,), states=states) for method in levels]


def test_the_rank_correlation_is_that_of_the_methods_in_both(tmp_path: Path) -> None:
    """`fedavg` and `third` are in one each, and take no rank away."""
    old = write_entries(tmp_path / "old", {**OLD, "fedavg": 0.99})
    new = write_entries(tmp_path / "new", {"third": 0.9, **NEW})
    pm, _, gm, _ = compare_leagues(old, new)
    assert "4 methods have a rank in both, of 5 old and 5 new ones" in pm.caption
    assert "2 methods have a rank in both" in gm.caption  # two of the four train a generic model
    before, after = [1, 2, 3, 4], [4, 2, 3, 1]
    expected = [stats.kendalltau(before, after).statistic, stats.spearmanr(before, after).statistic]
    found = [float(number) for number in re.findall(r"(?:tau|rho) (-?[\d.]+)[,.] ?", pm.caption)]
    assert found == pytest.approx(expected, abs=0.001)
    rows = {row: [entry.number or entry.note for entry in entries] for row, entries in pm.rows}
    assert list(rows) == ["local", "scd", "ditto", "fedper"]
    assert rows["local"] == ["4", "4–4", "1", "1–1", "+3"]
    assert rows["scd"] == ["1", "1–1", "4", "4–4", "-3"]
    assert rows["ditto"][-1] == "0"


def test_pairs_that_surely_turn_bound_the_correlation(tmp_path: Path) -> None:
    """The first and the last of four change places, with hardly any noise: one pair of six keeps its order."""
    old, new = write_entries(tmp_path / "old", OLD), write_entries(tmp_path / "new", NEW)
    turned = compare_leagues(old, new)[1]
    assert "Of 6 pairs of methods 1 surely have the same order in both, 5 surely turn" in turned.caption
    assert "between -0.67 and -0.67" in turned.caption  # Kendall's tau of the two orders is (1 - 5) / 6
    assert [row for row, _ in turned.rows] == [
        "ditto − local", "fedper − local", "scd − ditto", "scd − fedper", "scd − local",
    ]  # fmt: skip
    for _, entries in turned.rows:
        was, was_low, was_high, now, now_low, now_high = (float(entry.number) for entry in entries)
        assert 0 < was_low < was < was_high
        assert now_low < now < now_high < 0


def test_no_pair_surely_turns_by_noise_alone(tmp_path: Path) -> None:
    """Methods of one level: nothing is decided, so any order may be the true one."""
    level = dict.fromkeys(OLD, 0.8)
    turned = compare_leagues(write_entries(tmp_path / "old", level), write_entries(tmp_path / "new", level))[1]
    assert not turned.rows
    assert "Below" not in turned.caption
    assert to_markdown(turned) == f"**{turned.title}.** {turned.caption}\n"
    assert "Of 6 pairs of methods 0 surely have the same order in both, 0 surely turn" in turned.caption
    assert "between -1.00 and 1.00" in turned.caption


def test_ranks_are_among_the_methods_that_have_one_in_both(tmp_path: Path) -> None:
    """Without a cell `fedper` has no rank in the new one, so it takes none away in the old one."""
    old, new = write_entries(tmp_path / "old", OLD), write_entries(tmp_path / "new", OLD, failed="fedper")
    pm = compare_leagues(old, new)[0]
    assert "3 methods have a rank in both, of 4 old and 4 new ones" in pm.caption
    assert {row: [entry.number for entry in entries[::2]] for row, entries in pm.rows} == {
        "scd": ["1", "1", "0"], "ditto": ["2", "2", "0"], "local": ["3", "3", "0"]
    }  # fmt: skip


def test_one_method_in_common_is_not_enough(tmp_path: Path) -> None:
    old, new = write_entries(tmp_path / "old", OLD), write_entries(tmp_path / "new", {"scd": 0.9, "fedavg": 0.9})
    with pytest.raises(UserError, match="the two have 1 methods in common"):
        compare_leagues(old, new)
