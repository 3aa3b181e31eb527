"""Accuracy against the budget of tuning: what the first few trials of each method would have found."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bench.results.cell_names import drawn, task_name
from bench.results.pack import TRIALS
from reports.league.rule import family_mean, most_draws
from reports.league.tuning import budgets, trials
from reports.reading.load import PM, Store
from reports.tables.standings import derived_rows
from reports.tables.table import Column, Table, number

_LEADING = 6
"""Methods that are drawn besides the references."""
_OBJECTIVE = "PM"
"""Accuracy by which the league's trials are judged: a column of their tables."""


def best_by_trials(store: Store) -> pd.DataFrame:
    """Best validation accuracy in percent after each number of trials, mean over draws and tasks: rows x trials.

    A trial that was pruned or diverged has no accuracy; nan where a task has none so far. Without the rows whose entry
    has no tables of trials.
    """
    accuracies = {}
    for row in store.rows:
        cells = [cell for cell in store.cells if cell.row == row]
        draws = range(most_draws(store) + 1)
        tasks = {drawn(task_name(cell.view.settings), draw): cell.task for cell in cells for draw in draws}
        by_draw = _running_best(cells[0].view.folder.parent)
        if not by_draw.empty:
            named = by_draw.rename(columns=tasks)
            by_task = {task: named.loc[:, named.columns == task].mean(axis=1, skipna=False) for task in store.tasks}
            accuracies[row] = family_mean(store, pd.DataFrame(by_task))
    return pd.DataFrame(accuracies).T


def _running_best(entry: Path) -> pd.DataFrame:
    """Best accuracy so far, trials x tasks as `tuning.csv` calls them; empty where an entry has no tables of trials."""
    if not any(entry.glob(TRIALS)):
        return pd.DataFrame()
    columns = {}
    for at, budget in enumerate(budgets(entry)):
        accuracies = {int(trial) + 1: dict(shown)[_OBJECTIVE] for trial, shown in trials(entry, at).items()}
        values = pd.to_numeric(pd.Series(accuracies), errors="coerce")  # a dash: pruned, or diverged
        columns[budget["task"]] = values.sort_index().cummax().ffill()
    return pd.DataFrame(columns)


def trials_table(store: Store, accuracies: pd.DataFrame) -> Table:
    """Table of all rows of `best_by_trials`, the best first, those that train no personalized models last."""
    derived = derived_rows(store, store.tasks, PM)
    after_all = accuracies[accuracies.columns[-1]].fillna(-math.inf)
    order = sorted(map(str, accuracies.index), key=lambda row: (row in derived, -after_all[row], row))
    caption = (
        "Best validation accuracy (PM, percent) after each number of trials, mean over tasks. –: on some task no trial "
        "had come to its end; [ ]: generic models, or `centralized`."
    )
    how = (
        "Mean: over the tasks of a data family, then over families. Trials are judged by this accuracy, at the best "
        "round; it is no test figure, and the best of several is too high. Pruned and diverged trials have none."
    )
    columns = tuple(Column(str(trials), "trials") for trials in accuracies.columns)
    rows = tuple(
        (row, tuple(replace(number(value), derived=row in derived) for value in accuracies.T[row])) for row in order
    )
    return Table("trials", "Validation accuracy by number of trials", caption, "Method", columns, rows, how=how)
