"""Agreement of two computations of a league: `bench league compare OLD NEW`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.errors import UserError
from bench.results.results import load_run
from reports.league.rule import by_case, positions, ranked, units_of
from reports.reading.figure import Figure
from reports.reading.load import Store, load
from reports.statistics.ranking import Ranked
from reports.tables.accuracy import GM, PM, selection
from reports.tables.table import Column, Table, number, words

_MOVED = 10


def compare_leagues(old: Sequence[Path], new: Sequence[Path]) -> list[Table]:
    """Compare two rankings, for PM and GM: their correlation, and the methods that moved most.

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
    return [_table(stores[0], stores[1], figure, counts) for figure in (PM, GM)]


def _table(old: Store, new: Store, figure: Figure, counts: Sequence[int]) -> Table:
    before, after = _places(old, new, figure)
    was, now = positions(before), positions(after)
    columns = tuple(map(Column, ("old rank", "old interval", "new rank", "new interval", "moved")))
    name = f"compare_{figure.name.lower()}"
    moved = sorted(before, key=lambda row: (-abs(now[row] - was[row]), row))[:_MOVED]
    units = units_of(new) if units_of(old) == units_of(new) else f"{units_of(old)} (old) and {units_of(new)} (new)"
    rows = []
    for row in moved:
        ranks = [number(place[row], decimals=0) for place in (was, now)]
        intervals = [words(f"{place[row].first}–{place[row].last}") for place in (before, after)]
        change = number(was[row] - now[row], decimals=0, signed=True)
        rows.append((row, (ranks[0], intervals[0], ranks[1], intervals[1], change)))
    if not rows:
        caption = "Fewer than two methods have a rank in both."
        return Table(name, figure.name, caption, "Method", columns, ())
    caption = (
        f"{len(before)} methods have a rank in both, of {counts[0]} old and {counts[1]} new ones."
        f"{_correlation(list(was.values()), [now[row] for row in was])} Ranks are among these methods, by the mean "
        f"log-odds over {len(old.tasks)} old and {len(new.tasks)} new tasks; clones share one. Intervals hold all true "
        f"ranks at once with 95 % probability over {units}. Below: the {len(moved)} that moved "
        "most; + is upwards."
    )
    return Table(name, figure.name, caption, "Method", columns, tuple(rows))


def _correlation(old: Sequence[int], new: Sequence[int]) -> str:
    if min(len(set(old)), len(set(new))) < 2:
        return ""
    from scipy import stats

    tau, rho = stats.kendalltau(old, new).statistic, stats.spearmanr(old, new).statistic
    return f" Rank correlation: Kendall's tau {tau:.3f}, Spearman's rho {rho:.3f}."


def _places(old: Store, new: Store, figure: Figure) -> list[dict[str, Ranked]]:
    """Rank, in either league, the rows that have a rank in both."""
    stores = (old, new)
    common = set.intersection(*(set(ranked(store, figure, selection(store))[1]) for store in stores))
    return [ranked(_only(store, common), figure, selection(store))[1] for store in stores]


def _only(store: Store, rows: set[str]) -> Store:
    cells = tuple(cell for cell in store.cells if cell.row in rows)
    return replace(store, cells=cells, figures=store.figures[store.figures["row"].isin(rows)])
