"""Gains of personalized models over simple references, and scores up to a bound that uses all clients' data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from bench.data import Floats
from reports.league.rule import entries_of, has_draws, task_weights
from reports.league.tuning import budget_text
from reports.page.cells import anchor
from reports.page.section import Section
from reports.reading.load import PM, Store
from reports.statistics.inference import LEVEL, Summary, holm, p_value, summarise
from reports.statistics.reference import Differences, differences
from reports.tables.standings import Family, erratic_rows, family
from reports.tables.table import Column, Table, TableEntry, number, probability

ALONE = ("local", "finetune")
"""Methods that a personalized method has to beat: training alone, and FedAvg with fine-tuning."""
BOUND = "centralized"
"""Method beyond the rules, as a bound: it pools all clients' data."""
LEAST_ROOM = 1.0
"""Percentage points that `BOUND` must lie above `ALONE` for a personalization score."""


@dataclass(frozen=True)
class TaskMeasure:
    """A number for each row and task, and its mean over tasks by the league's rule with an interval over seeds.

    Attributes:
        by_task: rows x tasks.
        means: of each row, with Student's interval of that row by itself.
        corrected: of the rows that are compared, with intervals that hold all at once (Bonferroni), so that of the
            highest holds as well, which is chosen because it is the highest.

    Where units are draws of tuning, of which there are few, both rest on the moderated variances of the rows that are
    compared; other rows keep Student's interval.
    """

    by_task: pd.DataFrame
    means: dict[str, Summary]
    corrected: dict[str, Summary]


@dataclass(frozen=True)
class Gains:
    """Personalized models beside the two references.

    Attributes:
        compared: which rows may be compared.
        gain: points above the better of `ALONE`.
        p: p value of a mean gain of 0, with Holm's correction; of the rows that are compared.
        score: the gain as a share of the way to `BOUND`, nan where there is no room; None where the store has no bound.
    """

    compared: Family
    gain: TaskMeasure
    p: dict[str, float]
    score: TaskMeasure | None


def gains(store: Store) -> Gains | None:
    """Gains and personalization scores; None without both of `ALONE` on all tasks, or without a method to compare."""
    methods = {cell.row: cell.view.settings.method for cell in store.cells}
    accuracies = {row: store.units(row, PM) for row in store.rows}
    simple = [row for row in store.rows if methods[row] in ALONE]
    means = pd.DataFrame({row: accuracies[row].mean() for row in simple})
    if {methods[row] for row in simple} != set(ALONE) or means.isna().any(axis=None):
        return None
    best = pd.DataFrame({task: accuracies[str(row)][task] for task, row in means.idxmax(axis="columns").items()})
    above = {row: accuracy - best for row, accuracy in accuracies.items() if row not in simple}
    compared = family(store, store.tasks, PM)
    stands_for = {compared.clones.get(row, row) for row in simple}
    tested = [row for row in above if row in compared.scores and row not in stands_for]
    if not tested:
        return None
    least = pd.Series({task: store.least(task, PM.on) for task in store.tasks})
    gain = _measure(store, above, tested, least)
    weights = task_weights(store, store.tasks)
    if has_draws(store) and len(tested) > 1:
        by_itself = _moderated(store, above, tested, weights, least).p_values()
    else:
        of_mean = _least_mean(weights, least)
        by_itself = [p_value((above[row] @ weights).dropna().to_numpy(), of_mean) for row in tested]
    p = holm(by_itself)
    bound = next((row for row in store.rows if methods[row] == BOUND), None)
    score = None
    if bound is not None:
        wide = above[bound].mean().where(above[bound].mean() >= LEAST_ROOM)
        score = _measure(store, _scores(above, above[bound], wide), tested, least / wide)
    return Gains(compared, gain, dict(zip(tested, p, strict=True)), score)


def _least_mean(weights: Floats, least: pd.Series) -> float:
    """Least standard deviation of a weighted mean over tasks, from those of the tasks."""
    return float(np.linalg.norm(weights * least.to_numpy()))


def _scores(above: Mapping[str, pd.DataFrame], room: pd.DataFrame, wide: pd.Series) -> dict[str, pd.DataFrame]:
    """Personalization scores seed by seed, units x tasks, linear in the accuracies of a seed (delta method).

    Their mean over seeds is the ratio of the means. Ratios seed by seed would be of seeds without room, too.

    Args:
        above: points above the better simple method, by row.
        room: those of the bound.
        wide: their mean by task, nan where it is too small.
    """
    scores = {row: points.mean() / wide for row, points in above.items()}
    return {row: scores[row] + (points - room * scores[row]) / wide for row, points in above.items()}


def _measure(store: Store, by_seed: Mapping[str, pd.DataFrame], tested: Sequence[str], least: pd.Series) -> TaskMeasure:
    """Average values by row, units x tasks, with intervals; corrected ones for the rows that are compared.

    Args:
        store: cells of a league.
        by_seed: the values.
        tested: the rows that are compared.
        least: of each task, the least standard deviation of a unit, on the scale of the values.
    """
    by_task = pd.DataFrame({row: values.mean() for row, values in by_seed.items()}).T
    tasks = [task for task in store.tasks if task in by_task and by_task[task].notna().any()]
    weights = task_weights(store, tasks)
    values = {
        row: (values[tasks] @ weights).dropna().to_numpy() if tasks else np.array([]) for row, values in by_seed.items()
    }
    of_mean = _least_mean(weights, least[tasks])
    means = {row: summarise(of_row, least=of_mean) for row, of_row in values.items()}
    corrected = {row: summarise(values[row], LEVEL / len(tested), of_mean) for row in tested}
    if has_draws(store) and len(tested) > 1 and tasks:
        together = _moderated(store, by_seed, tested, weights, least[tasks])
        for summaries, level in ((means, LEVEL), (corrected, LEVEL / len(tested))):
            for row, half in zip(tested, together.half(level).tolist(), strict=True):
                mean = summaries[row].mean
                summaries[row] = replace(summaries[row], low=mean - half, high=mean + half)
    return TaskMeasure(by_task, means, corrected)


def _moderated(
    store: Store, by_seed: Mapping[str, pd.DataFrame], rows: Sequence[str], weights: Floats, least: pd.Series
) -> Differences:
    """The rows' differences from 0 on the tasks of `least`, with variances that all rows determine together."""
    tasks = [str(task) for task in least.index]
    tables = [np.array([by_seed[row][task].dropna().to_numpy() for row in rows]) for task in tasks]
    parted = erratic_rows(store, tasks)
    erratic = [False, *(row in parted for row in rows)]
    return differences(tables, [np.zeros(table.shape[1]) for table in tables], weights, erratic, least.tolist())


def gain_section(store: Store, comparison: Gains | None) -> Section:
    """Section of the two tables, where the store has the rows that they compare with."""
    text, tables = "", []
    if comparison is not None:
        tables.append(_gain_table(store, comparison))
        if comparison.score is not None and comparison.score.by_task.notna().any(axis=None):
            tables.append(_score_table(store, comparison.compared, comparison.score))
        elif comparison.score is not None:
            text = _NO_ROOM
    return Section("gain", "Is it worth it?", text, tuple(tables))


def _gain_table(store: Store, comparison: Gains) -> Table:
    caption = (
        "Percentage points of PM accuracy above the better of training alone (`local`) and FedAvg with fine-tuning "
        "(`finetune`) on each task. Below 0, a method is not worth its trouble there."
    )
    how = (
        f"All methods ran, each {budget_text(entries_of(store))}. Which of the two is better is read off the same "
        "seeds, so gains are understated if anything. Mean: over the tasks of a data family, then over families. "
        f"{_interval_text(store)} p: that the mean is 0, with Holm's correction over the methods. {_BRACKETS}"
    )
    rows = tuple(
        (row, (*entries[:5], probability(comparison.p.get(row, np.nan)), *entries[5:]))
        for row, entries in _rows(store, comparison.compared, comparison.gain)
    )
    columns = tuple(map(Column, (*_INTERVALS, "p (Holm)", *store.tasks)))
    return Table("gain", "Gain over what needs no method", caption, "Method", columns, rows, how=how)


def _score_table(store: Store, compared: Family, score: TaskMeasure) -> Table:
    caption = (
        "PM accuracy on a scale from 0, the better of training alone and FedAvg with fine-tuning, to 1, one model "
        "trained on all clients' data at once and then fine-tuned by every client (`centralized`). Above 1, a method "
        "is better than that."
    )
    how = (
        f"`centralized` ran {budget_text(entries_of(store))}. No score where the ends are less than {LEAST_ROOM:g} "
        "points apart: the scale has no length there. Mean: over the tasks of a data family that have a score, then "
        f"over families. {_interval_text(store)} Intervals are by the delta method. The ends of the scale are "
        "estimated from the same few seeds, and so is which tasks have one: where the ends lie close together, the "
        f"true interval is wider. {_BRACKETS}"
    )
    columns, rows = tuple(map(Column, (*_INTERVALS, *store.tasks))), tuple(_rows(store, compared, score))
    return Table("score", "Personalization score", caption, "Method", columns, rows, how=how)


_NO_ROOM = (
    "There is no personalization score: on no task does one model trained on all clients' data at once and then "
    f"fine-tuned by every client (`{BOUND}`) lie {LEAST_ROOM:g} or more points above the better of training alone "
    "and FedAvg with fine-tuning."
)
_INTERVALS = ("mean", "95 % low", "95 % high", "corrected low", "corrected high")
_BRACKETS = "[ ]: a generic model, or `centralized`; not compared, and listed last."


def _interval_text(store: Store) -> str:
    interval = (
        "an interval over draws of tuning, paired, with variances that all methods with a corrected interval "
        "determine together; of other rows Student's, of few draws and so wide"
        if has_draws(store)
        else "Student's interval of that mean over seeds, paired by seed"
    )
    return (
        f"95 %: {interval}, of each method by itself: of many, some miss. Corrected: intervals that all hold at once "
        "with 95 % probability (Bonferroni); read these of a leading one."
    )


def _rows(store: Store, compared: Family, measure: TaskMeasure) -> list[tuple[str, tuple[TableEntry, ...]]]:
    """Make each row's entries: mean with its two intervals, a number per task; first the compared rows, best first."""

    def place(row: str) -> tuple[bool, float, str]:
        mean = measure.means[row].mean
        return row in compared.left_out, math.inf if math.isnan(mean) else -mean, row

    rows = []
    for row in sorted(measure.means, key=place):
        summary, all_hold = measure.means[row], measure.corrected.get(row)
        corrected = (all_hold.low, all_hold.high) if all_hold else (math.nan, math.nan)
        intervals = (summary.mean, summary.low, summary.high, *corrected)
        entries = [number(value, signed=True) for value in intervals]
        entries += [
            replace(number(float(measure.by_task[task][row]), signed=True), link=anchor(row, task))
            for task in store.tasks
        ]
        derived = compared.left_out.get(row) == "derived"
        rows.append((row, tuple(replace(entry, derived=derived) for entry in entries)))
    return rows
