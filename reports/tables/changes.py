"""Table of what changes of the data do to each method."""

import math
from collections.abc import Sequence

import pandas as pd

from reports.reading.changes import RECOVERED
from reports.reading.load import Store
from reports.statistics import inference
from reports.tables.table import Column, Table, TableEntry, words

_HEADS = ("before", "after", "recovery", "forgotten")


def change_table(store: Store, changed: pd.DataFrame) -> Table:
    """Methods x (task, change and figure): mean and standard deviation over units.

    Args:
        store: cells of one protocol.
        changed: `reports.reading.changes.changes`.
    """
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
        "Personalized models, accuracy in percent on the clients' own tests, mean over clients weighted by training "
        "size; mean ± standard deviation (ddof 1) over seeds. before: the models of the round on the tests before the "
        "change; after: the same models on those after it; recovery: rounds until an evaluation with "
        f"{100 * RECOVERED:g} % of the accuracy before (in brackets how many seeds get there before the next change or "
        "the end, and the mean is of those); forgotten: how far the last models are below the best at the end of a "
        "stage since then, on the tests before the change. A diverged cell counts at chance level, and what it forgot "
        "is not known (n=)."
    )
    heads = tuple(Column(f"{head}, round {number}", task) for task, number in places for head in _HEADS)
    return Table("changes", "Changes of the data", caption, "Method", heads, tuple(rows))


def _entry(part: pd.DataFrame, head: str) -> TableEntry:
    values = part.groupby("unit")[head].mean().tolist()
    known = [value for value in values if not math.isnan(value)]
    if head != "recovery":
        note = f"(n={len(known)} of {len(values)})" if len(known) < len(values) else ""
        return _mean(known, note=note) if known else words("–")
    if not known:
        return words(f"– (0/{len(values)})" if values else "–")
    note = f"({len(known)}/{len(values)})" if len(known) < len(values) else ""
    return _mean(known, decimals=1, note=note)


def _mean(values: Sequence[float], decimals: int = 2, note: str = "") -> TableEntry:
    summary = inference.summarise(list(values))
    spread = None if math.isnan(summary.std) or note else summary.std
    return TableEntry(summary.mean, spread, note, decimals=decimals)
