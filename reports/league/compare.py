"""Agreement of two leagues, or of two computations of one: `bench league compare OLD NEW`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.errors import UserError
from bench.results.results import load_run
from reports.league.rule import by_case, data_families, positions, ranked, units_of
from reports.reading.load import GM, PM, Figure, Store, load
from reports.statistics.inference import LEVEL
from reports.statistics.ranking import pair_intervals
from reports.tables.table import Column, Table, number, words

_MOVED = 10


def compare_leagues(old: Sequence[Path], new: Sequence[Path]) -> list[Table]:
    """Compare two rankings, for PM and GM: their correlation, the methods that moved most, and pairs that surely turn.

    Args:
        old, new: run folders of entries. Methods that are not in both do not count.

    Raises:
        UserError: fewer than two methods are in both, or a folder is not a run.
    """
    entries = [[(view, {cell.label for cell in view.cells}) for view in map(load_run, runs)] for runs in (old, new)]
    common = set.intersection(*(set().union(*(names for _, names in labels)) for labels in entries))
    if len(common) < 2:
        raise UserError(f"the two have {len(common)} methods in common, and ranks are compared from two methods up")
    stores = [by_case(load([view for view, names in labels if names & common])) for labels in entries]
    counts = [sum(len(names) for _, names in labels) for labels in entries]
    first, second = stores
    tables = [(_table(first, second, figure, counts), _turned(first, second, figure)) for figure in (PM, GM)]
    return [table for moved, turned in tables for table in (moved, *turned)]


def _table(old: Store, new: Store, figure: Figure, counts: Sequence[int]) -> Table:
    common = set.intersection(*(set(ranked(store, figure)[1]) for store in (old, new)))
    before, after = (ranked(_only(store, common), figure)[1] for store in (old, new))
    was, now = positions(before), positions(after)
    columns = tuple(map(Column, ("old rank", "old interval", "new rank", "new interval", "moved")))
    name = f"compare_{figure.name.lower()}"
    if not common:
        caption = "Fewer than two methods have a rank in both."
        return Table(name, figure.name, caption, "Method", columns, ())
    moved = sorted(before, key=lambda row: (-abs(now[row] - was[row]), row))[:_MOVED]
    units = units_of(new) if units_of(old) == units_of(new) else f"{units_of(old)} (old) and {units_of(new)} (new)"
    rows = []
    for row in moved:
        ranks = [number(place[row], decimals=0) for place in (was, now)]
        intervals = [words(f"{place[row].first}–{place[row].last}") for place in (before, after)]
        change = number(was[row] - now[row], decimals=0, signed=True)
        rows.append((row, (ranks[0], intervals[0], ranks[1], intervals[1], change)))
    caption = (
        f"{len(before)} methods have a rank in both, of {counts[0]} old and {counts[1]} new ones; the {len(moved)} "
        f"that moved most are below, + is upwards.{_correlation(list(was.values()), [now[row] for row in was])}"
    )
    how = (
        f"Ranks are among these methods, by the mean log-odds over {len(old.tasks)} old and {len(new.tasks)} new "
        f"tasks; clones share one. Intervals hold all true ranks at once with 95 % probability over {units}."
    )
    return Table(name, figure.name, caption, "Method", columns, tuple(rows), how=how)


def _turned(old: Store, new: Store, figure: Figure) -> list[Table]:
    """Table of the pairs of methods whose order surely is another one in the new league; none without two methods.

    Each league's intervals hold at once with 97.5 %, so what is said of both holds with 95 %.
    """
    names = sorted(set.intersection(*(set(ranked(store, figure)[0].scores) for store in (old, new))))
    if len(names) < 2:
        return []
    intervals = []  # of the differences of mean log-odds: means and half widths, `[methods, methods]`
    for store in (_only(league, set(names)) for league in (old, new)):
        rows_of = ranked(store, figure)[0].only(names)
        families = data_families(store, store.tasks)
        mean, half = pair_intervals(rows_of.tasks, families, rows_of.flags, LEVEL / 2, rows_of.least)
        intervals.append((mean[:, None] - mean[None], half))
    signs = np.array([np.where(np.abs(mean) > half, np.sign(mean), 0) for mean, half in intervals])
    upper = np.triu_indices(len(names), 1)
    agreement = (signs[0] * signs[1])[upper]
    same, other, pairs = int((agreement > 0).sum()), int((agreement < 0).sum()), len(agreement)
    undecided = pairs - same - other
    low, high = (same - other - undecided) / pairs, (same - other + undecided) / pairs
    rows = []
    for at, rival in zip(*np.nonzero((signs[0] > 0) & (signs[1] < 0)), strict=True):
        by_league = [(mean[at, rival], half[at, rival]) for mean, half in intervals]
        ends = [end for mean, half in by_league for end in (mean, mean - half, mean + half)]
        rows.append((f"{names[at]} − {names[rival]}", tuple(number(end, signed=True) for end in ends)))
    columns = tuple(Column(name, group) for group in ("old", "new") for name in ("log-odds", "95 % low", "95 % high"))
    caption = (
        f"Of {pairs} pairs of methods {same} surely have the same order in both, {other} surely turn, and the others "
        f"are undecided in one of the two: Kendall's tau of the true orders is between {low:.2f} and {high:.2f}, with "
        "95 % probability."
    )
    if rows:
        caption += " Below: the differences of those that turn; each league's hold at once with 97.5 %."
    return [Table(f"turned_{figure.name.lower()}", f"{figure.name}: order", caption, "Pair", columns, tuple(rows))]


def _correlation(old: Sequence[int], new: Sequence[int]) -> str:
    if min(len(set(old)), len(set(new))) < 2:
        return ""
    from scipy import stats

    tau, rho = stats.kendalltau(old, new).statistic, stats.spearmanr(old, new).statistic
    return f" Rank correlation: Kendall's tau {tau:.3f}, Spearman's rho {rho:.3f}."


def _only(store: Store, rows: set[str]) -> Store:
    cells = tuple(cell for cell in store.cells if cell.row in rows)
    return replace(store, cells=cells, figures=store.figures[store.figures["row"].isin(rows)])
