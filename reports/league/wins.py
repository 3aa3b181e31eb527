"""Counts of tasks on which one method surely beats another: for each pair, and for one method against all others."""

from collections import Counter

import numpy as np
import pandas as pd

from reports.league.rule import ranked
from reports.pictures.canvas import Picture, drawing, finish
from reports.reading.load import Figure, Store
from reports.statistics.best import TaskOutcome, outcomes
from reports.tables.standings import Family

_LEADING = 12


def counted(compared: Family, method: str, margin: float) -> dict[str, Counter[TaskOutcome]]:
    """Count the tasks on which `method` wins, ties or loses against each other row, or on which neither is shown.

    Args:
        compared: the rows.
        method: one of them.
        margin: of equivalence, in percentage points.
    """
    rows, erratic = list(compared.scores), compared.flags
    at = rows.index(method)
    counts: dict[str, Counter[TaskOutcome]] = {row: Counter() for row in rows if row != method}
    for task, least in zip(compared.tasks, compared.least, strict=True):
        for row, outcome in zip(rows, outcomes(task, max(1, len(counts)), margin, erratic, least)[at], strict=True):
            if row != method:
                counts[row][outcome] += 1
    return counts


def wins(store: Store, figure: Figure, method: str | None = None) -> pd.DataFrame:
    """Count the tasks on which a leading method (row) is surely better than another one (column).

    Args:
        store: cells of a league.
        figure: which accuracy.
        method: a method that stands beside the leading ones.

    Returns:
        Methods x methods; empty where fewer than two have a rank.
    """
    compared, places = ranked(store, figure)
    order = sorted(compared.scores, key=lambda row: (-places[row].mean, row)) if places else []
    named = compared.clones.get(method or "", method)
    shown = [row for at, row in enumerate(order) if at < _LEADING or row == named]
    if not shown:
        return pd.DataFrame()
    counts = np.zeros((len(shown), len(shown)), dtype=int)
    leading = compared.only(shown)
    for task, least in zip(leading.tasks, leading.least, strict=True):
        counts += np.array(outcomes(task, _pairs(len(shown)), store.margin, leading.flags, least)) == "win"
    return pd.DataFrame(counts, index=shown, columns=shown)


def win_matrix(store: Store, counts: pd.DataFrame, figure: Figure) -> Picture:
    """A heat map of `wins`."""
    caption = (
        f"On how many of {len(store.tasks)} tasks the method on the left is surely better than the one below; the "
        f"first {min(_LEADING, len(counts))} by rank{', and the one asked for' * (len(counts) > _LEADING)}. "
        f"{figure.text}."
    )
    how = (
        f"{outcome_text(store.margin)} Corrected for the {_pairs(len(counts))} pairs, task by task. The tasks that are "
        "missing in a pair's two numbers are ties or not decided."
    )
    size = 2.0 + 0.36 * len(counts)
    with drawing([""], 1, (size + 1.2, size), share=False) as (canvas, axes):
        canvas.least = 1.9 + 0.25 * len(counts)
        axes[0].imshow(counts, aspect="auto", cmap="Blues", vmin=0, vmax=max(1, 1.5 * counts.to_numpy().max()))
        for (winner, loser), count in np.ndenumerate(counts):
            colour = "#111111" if count else "#9aa2ab"
            axes[0].text(loser, winner, "" if winner == loser else str(count), ha="center", va="center", color=colour)
        axes[0].set_xticks(range(len(counts)), counts.columns, rotation=90)
        axes[0].set_yticks(range(len(counts)), counts.index)
        axes[0].grid(visible=False)
        return finish(canvas, f"wins_{figure.name.lower()}", f"{figure.name}: who beats whom", caption, how)


def outcome_text(margin: float) -> str:
    """Explanation for captions of when a task is won."""
    return (
        "Surely better: the other is worse, as in a column's marks: the interval of the paired difference "
        f"lies below 0 and reaches more than {margin:g} points down (logits, moderated variances)."
    )


def _pairs(methods: int) -> int:
    return methods * (methods - 1) // 2
