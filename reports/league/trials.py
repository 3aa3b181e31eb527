"""Accuracy against the budget of tuning: what the first few trials of each method would have found."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bench.results.cell_names import drawn, task_name
from bench.results.pack import TRIALS, TUNING
from reports.league.rule import REFERENCES, family_mean, most_draws, ranked
from reports.pictures.canvas import Picture, drawing, finish, legend, style_of
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
    tuning = pd.read_csv(entry / TUNING.name)
    columns = {}
    for at, task in enumerate(tuning[tuning["column"] == "task"]["note"]):
        trials = pd.read_csv(entry / TRIALS.replace("*", str(at)))
        values = trials[trials["column"] == _OBJECTIVE].set_index("row")["value"].astype(float)
        columns[task] = values.sort_index().cummax().ffill()
    return pd.DataFrame(columns).rename(index=lambda trial: int(trial) + 1)


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


def trials_picture(store: Store, accuracies: pd.DataFrame, method: str | None = None) -> Picture:
    """Draw the leading methods of the ranking and the references, a line each.

    Args:
        store: cells of a league.
        accuracies: from `best_by_trials`, not empty.
        method: a method that is drawn, too.
    """
    shown = _shown(store, accuracies, method)
    derived = derived_rows(store, store.tasks, PM)
    lines = {
        f"[{row}]" if row in derived else row: style_of(k) | {"marker": "o", "ms": 3} for k, row in enumerate(shown)
    }
    with drawing([""], 1, (6.5, 3.4), share=False) as (canvas, axes):
        for row, style in zip(shown, lines.values(), strict=True):
            axes[0].plot(accuracies.columns, accuracies.loc[row], **style)
        axes[0].set(xlabel="trials", ylabel="best validation PM (%)", xticks=list(accuracies.columns))
        legend(canvas, lines)
        without = len(store.rows) - len(accuracies)
        leading = sum(row not in (*REFERENCES, method) for row in shown)
        caption = (
            f"Best validation accuracy (PM) of the trials so far, mean over tasks: the first {leading} by rank, and "
            f"the references, of the {len(accuracies)} entries with tables of their "
            f"trials{f' ({without} without them are left out)' if without else ''}. [ ]: generic models."
        )
        how = (
            "Trials are in their order; the mean is over the tasks of a data family, then over families. By this "
            "accuracy tuning chooses; tests are not read. Where a line begins later, on some task no trial before had "
            "come to its end."
        )
        return finish(canvas, "trials", "Accuracy against trials", caption, how)


def _shown(store: Store, accuracies: pd.DataFrame, method: str | None) -> Sequence[str]:
    _, places = ranked(store, PM)
    named = [row for row in dict.fromkeys([method, *REFERENCES]) if row in accuracies.index]
    others = [row for row in accuracies.index if row not in named and (row in places or not places)]
    return [*named, *sorted(others, key=lambda row: -places[row].mean if places else 0)[:_LEADING]]
