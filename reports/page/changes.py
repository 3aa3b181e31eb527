"""Accuracies over changes of the data (docs/changing-data.md): the models of each round that ends a stage, on the tests
of that stage, of the one that comes, and of all that were.
"""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from reports.page.section import Section
from reports.pictures.canvas import Picture, drawing, finish, legend, styles
from reports.pictures.figures import band
from reports.reading.load import PM, Cell, Store, remembered
from reports.tables.table import Column, Table, TableEntry, mean_entry, words

RECOVERED = 0.95
"""Share of the accuracy before a change at which a method counts as recovered."""

_COLUMNS = ["row", "task", "unit", "round", "before", "after", "recovery", "forgotten"]


def change_section(store: Store) -> Section | None:
    """Section of what changes of the data do to the methods; None where nothing changes."""
    changed = changes(store)
    if not len(changed):
        return None
    pictures = (change_curves(store, curves(store)),)
    return Section("changes", "Changes of the data", tables=(change_table(store, changed),), pictures=pictures)


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
    """
    rows = [row for cell in store.cells if cell.state == "done" for row in _of_cell(cell)]
    rows += [row for cell in store.cells if cell.state == "diverged" for row in _of_diverged(store, cell)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_cell(cell: Cell) -> list[dict[str, Any]]:
    settings = cell.view.settings
    if not settings.timeline:
        return []
    compared = PM.accuracies(cell.view.table("changes")).set_index(["round", "stage"])["value"]
    curve = PM.accuracies(cell.view.table("metrics")).set_index("round")["value"]
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
    """Accuracy in percent by round of cells whose data change: row, task, seed, `round`, `after` and `accuracy`.

    The round of a change is there twice: on the tests before it, and after it (`after` is 1), in this order.
    """
    parts, columns = [], ["row", "task", "seed", "round", "after", "accuracy"]
    for cell in store.cells:
        if cell.state != "done" or not cell.view.settings.timeline:
            continue
        curve = PM.accuracies(cell.view.table("metrics")).assign(after=0)
        compared = PM.accuracies(cell.view.table("changes"))
        stages = {change.round: number for number, change in enumerate(cell.view.settings.timeline, start=1)}
        later = compared[compared["stage"] == compared["round"].map(stages)].assign(after=1)
        whole = pd.concat([curve, later]).sort_values(["round", "after"], kind="stable")
        parts.append(whole.assign(row=cell.row, task=cell.task, seed=cell.seed, accuracy=whole["value"])[columns])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


_HEADS = ("before", "after", "recovery", "forgotten")


def change_table(store: Store, changed: pd.DataFrame) -> Table:
    """Methods x (task, change and figure): mean and standard deviation over units."""
    places = [
        (task, int(number)) for task in store.tasks for number in sorted(set(changed[changed["task"] == task]["round"]))
    ]
    rows = []
    for row in store.rows:
        parts = [
            changed[(changed["row"] == row) & (changed["task"] == task) & (changed["round"] == number)]
            for task, number in places
        ]
        if any(map(len, parts)):
            rows.append((row, tuple(_entry(part, head) for part in parts for head in _HEADS)))
    caption = (
        "Accuracy in percent of personalized models on their clients' own tests, before and after each change of the "
        "data; mean ± standard deviation over seeds."
    )
    how = (
        "Means over clients are weighted by training size. before: the models of the round on the tests before the "
        "change; after: the same models on those after it; recovery: rounds until an evaluation with "
        f"{100 * RECOVERED:g} % of the accuracy before (in brackets how many seeds get there before the next change or "
        "the end, and the mean is of those); forgotten: how far the last models are below the best at the end of a "
        "stage since then, on the tests before the change. A diverged cell counts at chance level, and what it forgot "
        "is not known (n=)."
    )
    heads = tuple(Column(f"{head}, round {number}", task) for task, number in places for head in _HEADS)
    return Table("changes", "Changes of the data", caption, "Method", heads, tuple(rows), how=how)


def _entry(part: pd.DataFrame, head: str) -> TableEntry:
    values = part.groupby("unit")[head].mean().tolist()
    known = [value for value in values if not math.isnan(value)]
    if head == "recovery" and values and not known:
        return words(f"– (0/{len(values)})")
    entry = mean_entry(known, decimals=1 if head == "recovery" else 2)
    if len(known) in (0, len(values)):
        return entry
    note = f"({len(known)}/{len(values)})" if head == "recovery" else f"(n={len(known)} of {len(values)})"
    return replace(entry, spread=None, note=note)


def change_curves(store: Store, curves: pd.DataFrame) -> Picture:
    """A panel per task whose data change: mean and band over seeds, and a dotted line at each change."""
    lines = styles(store)
    tasks = [task for task in store.tasks if (curves["task"] == task).any()]
    with drawing(tasks, 1, panel=(4.6, 2.8)) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            part = curves[curves["task"] == task]
            for row in store.rows:
                band(axis, part[part["row"] == row], "round", lines[row], "after")
            for number in sorted(set(part[part["after"] == 1]["round"])):
                axis.axvline(number, color="#888888", linewidth=0.8, linestyle=":", zorder=0)
            axis.locator_params("x", integer=True)
            axis.set(title=task, xlabel="rounds", ylabel="PM accuracy (%)")
        legend(canvas, lines)
        caption = (
            "Test accuracy of personalized models on their clients' own tests, weighted by training size, against "
            "rounds: mean and standard deviation over seeds. A dotted line is a change of the data; there the same "
            "models are scored twice, on the tests before and after it."
        )
        return finish(canvas, "changes", "Accuracy over changes of the data", caption)
