"""Rows that may be compared, and how they stand against the best: per column of a table, and over all tasks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bench.data import Floats
from reports.reading.load import Figure, Store, remembered
from reports.statistics import best
from reports.tables.table import Column, Mark, Table, TableEntry, number, words

_CLONE_UNITS = 3
"""Rows equal in at least so many units are one model under two names; in fewer that is chance."""
_MARKS: dict[best.Verdict, Mark] = {"better": "equal", "equivalent": "equal", "undecided": "near", "worse": ""}


@dataclass(frozen=True)
class Family:
    """The rows that are compared, and why the others are not.

    Attributes:
        scores: of each row, per task `[units]`, in percent; the same units in all rows.
        clones: rows whose model is another row's (Ditto's generic model is FedAvg's), by name of the first one.
        left_out: the other rows, with the reason.
        erratic: the rows that diverged in some cells of a task and not in others.
        least: of each task, the least standard deviation of a unit (`Store.least`).
        margin: of equivalence, in percentage points.
    """

    scores: dict[str, list[Floats]]
    clones: dict[str, str]
    left_out: dict[str, str]
    erratic: frozenset[str]
    least: tuple[float, ...] = ()
    margin: float = best.MARGIN

    @property
    def tasks(self) -> list[Floats]:
        """Accuracies of each task, `[rows, units]`."""
        return [np.array(rows) for rows in zip(*self.scores.values(), strict=True)]

    @property
    def flags(self) -> list[bool]:
        """Whether each row that is compared is erratic."""
        return [row in self.erratic for row in self.scores]

    def only(self, rows: Collection[str]) -> "Family":
        """The family with some of its rows, in this order."""
        return replace(self, scores={row: self.scores[row] for row in rows})

    @cached_property
    def standings(self) -> dict[str, best.Standing]:
        """Each row against the best of the others; empty where one seed, or one row, says nothing."""
        several = len(self.scores) > 1
        compared = best.against_best(self.tasks, self.margin, self.flags, self.least) if several else []
        return dict(zip(self.scores, compared, strict=False))


@remembered
def family(store: Store, tasks: Sequence[str], figure: Figure, *, deployed: bool = False) -> Family:
    """The rows with a trained, complete figure on all of the tasks, each model once.

    Figures that a method derives count too where it is asked what to deploy.
    """
    derived, complete = set() if deployed else derived_rows(store, tasks, figure), store.whole(figure, tasks)
    whole = {row: by_unit(store, row, tasks, figure) for row in complete if row not in derived}
    left_out = {row: "derived" if row in derived else "incomplete" for row in store.rows if row not in whole}
    least = tuple(store.least(task, figure.on) for task in tasks)
    return Family(*each_once(whole), left_out, erratic_rows(store, tasks), least, store.margin)


@remembered
def erratic_rows(store: Store, tasks: Sequence[str]) -> frozenset[str]:
    """The rows that diverged in some cells of one of the tasks and not in others."""
    states: dict[str, set[tuple[str, str]]] = {"done": set(), "diverged": set()}
    for cell in store.cells:
        states.setdefault(cell.state, set()).add((cell.row, cell.task))
    return frozenset(row for row, task in states["done"] & states["diverged"] if task in tasks)


def each_once(scores: Mapping[str, list[Floats]]) -> tuple[dict[str, list[Floats]], dict[str, str]]:
    """Tell models from their clones, of which a difference of variance 0 would distort what is said of all others.

    Args:
        scores: of each row, arrays with the same units in all rows.

    Returns:
        The scores of each model, by its first name; and that name by each further one.
    """
    models: dict[str, list[Floats]] = {}
    clones: dict[str, str] = {}
    for row, units in scores.items():
        if (first := next((other for other, rival in models.items() if _same(units, rival)), None)) is not None:
            clones[row] = first
        else:
            models[row] = units
    return models, clones


@remembered
def derived_rows(store: Store, tasks: Sequence[str], figure: Figure) -> set[str]:
    """The rows that do not train this model on some of the tasks, so that what is shown is derived from another one."""
    f = store.figures
    return set(f[f["task"].isin(tasks) & (f["metric"] == figure.metric) & f["derived"].astype(bool)]["row"])


def by_unit(store: Store, row: str, tasks: Sequence[str], figure: Figure) -> list[Floats]:
    """Accuracies in percent of a row, per task `[units]`, units in one order for all rows."""
    by_task = [store.scores(row, task, figure) for task in tasks]
    return [np.array([units[unit] for unit in sorted(units)]) for units in by_task]


def column_marks(store: Store, task: str, figure: Figure) -> tuple[dict[str, Mark], dict[str, str]]:
    """Marks of one column by row, and for each clone the row whose model it has."""
    group = family(store, [task], figure)
    marks: dict[str, Mark] = {row: _MARKS[standing.verdict] for row, standing in group.standings.items()}
    means = {row: float(units[0].mean()) for row, units in group.scores.items()}
    if len(means) + len(group.clones) > 1:  # one without rivals is not called best
        marks[max(means, key=lambda row: means[row])] = "best"
    return marks | {row: marks.get(first, "") for row, first in group.clones.items()}, group.clones


def standings_table(store: Store, figures: Sequence[Figure]) -> Table:
    """Table of every method against the best of the others over all tasks, or those of a case, in one word and with its
    interval."""
    names = ("verdict", "difference", "low", "high", "seeds for 1 point")
    columns = (*([Column("case")] if store.cases else []), *(Column(n, f.name) for f in figures for n in names))
    rows: list[tuple[str, tuple[TableEntry, ...]]] = []
    for case, part in (store.cases or {"": store}).items():
        by_figure = [_part(part, figure) for figure in figures]
        head = (words(case),) if store.cases else ()
        rows += [(row, (*head, *(entry for by_row in by_figure for entry in by_row[row]))) for row in part.rows]
    which = "all tasks of a case" if store.cases else "all tasks"
    caption = (
        f"Each method against the best of the others, mean over {which}: difference in percentage points with "
        f"simultaneous 95 % intervals. Equivalent: at most {store.margin:g} points below the best; undecided: neither "
        "worse nor equivalent, which is no sign of equality."
    )
    how = (
        "Computed on logits of accuracies, in points at the best one's level; differences are paired by seed, and "
        "variances moderated. Better: than every other method. Worse: than the best. Seeds for 1 point: how many seeds "
        "per task would show one point four times in five, given the spread seen here. Methods that did not train the "
        "model, have another method's figures, or lack a cell are not compared."
    )
    return Table("standings", "What the data say", caption, "Method", columns, tuple(rows), how=how)


def _part(store: Store, figure: Figure) -> dict[str, tuple[TableEntry, ...]]:
    group = family(store, store.tasks, figure)
    standings = group.standings
    reasons = {**group.left_out, **{row: f"= {first}" for row, first in group.clones.items()}}
    part: dict[str, tuple[TableEntry, ...]] = {}
    for row in store.rows:
        if (standing := standings.get(row)) is None:
            part[row] = (words(reasons.get(row, "–")), *(words("–"),) * 4)
        else:
            points = (number(x, signed=True) for x in (standing.difference, standing.low, standing.high))
            seeds = number(standing.seeds, decimals=0) if standing.seeds else words(">10000")
            part[row] = (words(standing.verdict), *points, seeds)
    return part


def _same(first: list[Floats], other: list[Floats]) -> bool:
    units = np.concatenate(first)
    return len(units) >= _CLONE_UNITS and np.allclose(units, np.concatenate(other), rtol=1e-9, atol=0)
