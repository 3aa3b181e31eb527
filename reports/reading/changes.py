"""Accuracies over changes of the data (docs/changing-data.md): the models of each round that ends a stage, on the tests
of that stage, of the one that comes, and of all that were.
"""

import math
from typing import Any

import pandas as pd

from reports.reading.load import Cell, Store, remembered

RECOVERED = 0.95
"""Share of the accuracy before a change at which a method counts as recovered."""

_COLUMNS = ["row", "task", "unit", "round", "before", "after", "recovery", "forgotten"]


@remembered
def changes(store: Store) -> pd.DataFrame:
    """Effects of each change on personalized models: a row for each cell that has ended and each of its changes.

    Accuracies are in percent, means over clients weighted by training samples; those of a diverged cell are chance
    level, it never recovers, and what it forgot is nan.

    Returns:
        Columns row, task, unit and `round`, the last one before the change; `before`, the models of that round on the
        tests before the change, and `after`, the same models on those after it; `recovery`, rounds until an evaluation
        that has `RECOVERED` of `before`, nan where none does before the next change or the end; `forgotten`, how far
        the last models are below the best at the end of a stage since, on the tests before the change (Chaudhry et
        al. 2018). Empty where nothing changes.

    Args:
        store: cells of one protocol.
    """
    rows = [row for cell in store.cells if cell.state == "done" for row in _of_cell(cell)]
    rows += [row for cell in store.cells if cell.state == "diverged" for row in _of_diverged(store, cell)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_cell(cell: Cell) -> list[dict[str, Any]]:
    settings = cell.view.settings
    if not settings.timeline:
        return []
    compared = _accuracies(cell.view.table("changes")).set_index(["round", "stage"])["value"]
    curve = _accuracies(cell.view.table("metrics")).set_index("round")["value"]
    ends = [*(change.round for change in settings.timeline), settings.rounds]
    rows = []
    for stage, end in enumerate(ends[:-1]):
        before, after = (compared.get((end, number), math.nan) for number in (stage, stage + 1))
        of_stage = curve[(curve.index > end) & (curve.index <= ends[stage + 1])]
        recovered = of_stage[of_stage >= RECOVERED * before]
        at_ends = [compared.get((later, stage), math.nan) for later in ends[stage:]]
        rows.append({
            "row": cell.row, "task": cell.task, "unit": cell.unit, "round": end, "before": before, "after": after,
            "recovery": recovered.index[0] - end if len(recovered) else math.nan,
            "forgotten": max(at_ends[:-1]) - at_ends[-1],
        })  # fmt: skip
    return rows


def _of_diverged(store: Store, cell: Cell) -> list[dict[str, Any]]:
    guess = store.chance(cell.task)
    names = {"row": cell.row, "task": cell.task, "unit": cell.unit}
    accuracies = {"before": guess, "after": guess, "recovery": math.nan, "forgotten": math.nan}
    return [{**names, "round": change.round, **accuracies} for change in cell.view.settings.timeline]


@remembered
def curves(store: Store) -> pd.DataFrame:
    """Accuracy in percent by round of cells whose data change: row, task, seed, `round`, `after` and `value`.

    The round of a change is there twice: on the tests before it, and after it (`after` is 1), in this order.

    Args:
        store: cells of one protocol.
    """
    parts = []
    for cell in store.cells:
        if cell.state != "done" or not cell.view.settings.timeline:
            continue
        curve = _accuracies(cell.view.table("metrics")).assign(after=0)
        compared = _accuracies(cell.view.table("changes"))
        stages = {change.round: number for number, change in enumerate(cell.view.settings.timeline, start=1)}
        later = compared[compared["stage"] == compared["round"].map(stages)].assign(after=1)
        whole = pd.concat([curve, later]).sort_values(["round", "after"], kind="stable")
        named = whole.assign(row=cell.row, task=cell.task, seed=cell.seed)
        parts.append(named[["row", "task", "seed", "round", "after", "value"]])
    columns = ["row", "task", "seed", "round", "after", "value"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _accuracies(table: pd.DataFrame) -> pd.DataFrame:
    """Test accuracies in percent of personalized models, weighted by training samples."""
    chosen = (table["metric"] == "pm") & (table["on"] == "local") & (table["mean"] == "train_size")
    rows = table[chosen & (table["split"] == "test") & (table["quantity"] == "accuracy")]
    return rows.assign(value=100 * rows["value"])
