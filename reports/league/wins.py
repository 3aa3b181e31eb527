"""On how many tasks one method surely beats another: for each pair, and for one method against all others."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from bench.data import Floats
from reports.league.rule import ranked
from reports.pictures.canvas import Picture, drawing, finish
from reports.reading.figure import Figure
from reports.reading.load import Store
from reports.statistics.best import TaskOutcome, outcomes

_LEADING = 12


def counted(scores: Mapping[str, Sequence[Floats]], method: str, margin: float) -> dict[str, Counter[TaskOutcome]]:
    """By each other row: on how many tasks `method` wins, ties, loses, and on how many neither is shown.

    Args:
        scores: by row, per task `[units]`, in percent.
        method: one of the rows.
        margin: of equivalence, in percentage points.
    """
    rows = list(scores)
    at = rows.index(method)
    found: dict[str, Counter[TaskOutcome]] = {row: Counter() for row in rows if row != method}
    for task in _tasks(scores):
        for row, outcome in zip(rows, outcomes(task, max(1, len(found)), margin)[at], strict=True):
            if row != method:
                found[row][outcome] += 1
    return found


def wins(store: Store, figure: Figure, chosen: str, method: str | None = None) -> pd.DataFrame:
    """On how many tasks a leading method (row) is surely better than another one (column); empty for fewer than two.

    Args:
        store: cells of a league.
        figure: which accuracy.
        chosen: which round is reported.
        method: stands beside the leading ones.
    """
    compared, places = ranked(store, figure, chosen)
    order = sorted(compared.scores, key=lambda row: (-places[row].mean, row)) if places else []
    named = compared.clones.get(method or "", method)
    shown = [row for at, row in enumerate(order) if at < _LEADING or row == named]
    found = np.zeros((len(shown), len(shown)), dtype=int)
    for task in _tasks({row: compared.scores[row] for row in shown}):
        found += np.array(outcomes(task, _pairs(len(shown)), store.margin)) == "win"
    return pd.DataFrame(found, index=shown, columns=shown)


def win_matrix(store: Store, found: pd.DataFrame, figure: Figure) -> Picture:
    """A heat map of `wins`."""
    caption = (
        f"{figure.text}: on how many of {len(store.tasks)} tasks the method on the left is surely better than the one "
        f"below; the first {min(_LEADING, len(found))} by rank{', and the one asked for' * (len(found) > _LEADING)}. "
        f"{outcome_text(store.margin)} Corrected for the {_pairs(len(found))} pairs, task by task. The tasks that are "
        "missing in a pair's two numbers are ties or not decided."
    )
    size = 1.6 + 0.36 * len(found)
    with drawing([""], 1, (size + 1.2, size), share=False) as (canvas, axes):
        axes[0].imshow(found, aspect="auto", cmap="Blues", vmin=0, vmax=max(1, 1.5 * found.to_numpy().max()))
        for (one, other), count in np.ndenumerate(found):
            colour = "#111111" if count else "#9aa2ab"
            axes[0].text(other, one, "" if one == other else str(count), ha="center", va="center", color=colour)
        axes[0].set_xticks(range(len(found)), found.columns, rotation=40, ha="right", rotation_mode="anchor")
        axes[0].set_yticks(range(len(found)), found.index)
        axes[0].grid(visible=False)
        return finish(canvas, f"wins_{figure.name.lower()}", f"{figure.name}: who beats whom", caption)


def outcome_text(margin: float) -> str:
    """For captions: when a task is won."""
    return (
        "Surely better: the other is worse, as in a column's marks: the interval of the paired difference over the "
        f"seeds of the task lies below 0 and reaches more than {margin:g} points down (logits, moderated variances)."
    )


def _pairs(methods: int) -> int:
    return methods * (methods - 1) // 2


def _tasks(scores: Mapping[str, Sequence[Floats]]) -> list[Floats]:
    """For each task `[rows, units]`."""
    return [np.array(rows) for rows in zip(*scores.values(), strict=True)]
