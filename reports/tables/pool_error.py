"""Errors of a report's accuracies from the choice of the samples in the test pool.

Intervals over seeds say what other partitions and seeds could change; the test pool is the same in all of them. Here
the seeds are fixed and the pool's photographs are drawn anew. An accuracy, or the difference of two methods' ones,
is a weighted mean over photographs, each counting for all clients and seeds that tested it, and its standard error is
that of a ratio of two sums (Cochran 1977, Sampling Techniques, section 6.4).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from reports.reading.load import Cell, Figure, Store
from reports.tables.standings import family
from reports.tables.table import Column, Table, TableEntry, number, words


def pool_table(store: Store, figures: Sequence[Figure]) -> Table | None:
    """Standard errors in points: of each method's accuracy, and of its difference from the task's best one.

    None where no cell kept which samples were right.
    """
    parts = {(figure, task): _errors(store, task, figure) for figure in figures for task in store.tasks}
    shown = {place: errors for place, errors in parts.items() if errors}
    if not shown:
        return None
    names = ("error", "behind the best", "error of the distance")
    columns = tuple(Column(name, f"{figure.name}, {task}") for figure, task in shown for name in names)
    rows = []
    for row in store.rows:
        entries: list[TableEntry] = []
        for errors in shown.values():
            entries += [number(value) for value in errors[row]] if row in errors else [words("–")] * len(names)
        rows.append((row, tuple(entries)))
    caption = (
        "Standard error, in percentage points, from the test samples alone: of a method's accuracy, and of how far it "
        "is behind the task's best. More seeds do not make it smaller; it comes on top of the intervals over seeds."
    )
    return Table("pool_error", "What other test samples could change", caption, "Method", columns, tuple(rows))


def _errors(store: Store, task: str, figure: Figure) -> dict[str, tuple[float, float, float]]:
    """Compute for each row the error of its accuracy, its distance from the best, and the error of this distance."""
    compared = family(store, [task], figure)
    by_row = {row: _photographs(store, row, task, figure) for row in (*compared.scores, *compared.clones)}
    known = {row: photographs for row, photographs in by_row.items() if photographs is not None}
    if not known:
        return {}
    best = known[max(known, key=lambda row: float(known[row]["hits"].sum()))]
    errors = {}
    for row, photographs in known.items():
        behind = photographs.assign(hits=best["hits"] - photographs["hits"])
        errors[row] = error(photographs), float(behind["hits"].sum()), error(behind)
    return errors


def error(photographs: pd.DataFrame) -> float:
    """Standard error of the sum of `hits` in percent, whose `weight` sums to 1; a row for each photograph."""
    n = len(photographs)
    left = photographs["hits"] - photographs["weight"] * photographs["hits"].sum()
    return float(np.sqrt(n / (n - 1) * np.square(left).sum())) if n > 1 else float("nan")


def _photographs(store: Store, row: str, task: str, figure: Figure) -> pd.DataFrame | None:
    """Contribution of each photograph to a row's accuracy in percent, `hits`, and to the whole, `weight`.

    Both are means over seeds; None where a cell kept nothing.
    """
    cells = store.of(row, task)
    parts = [table for table in (_of_cell(store, cell, figure) for cell in cells) if table is not None]
    if not parts or len(parts) < len(cells):
        return None
    return pd.concat(parts).groupby("sample").sum() / len(parts)


def _of_cell(store: Store, cell: Cell, figure: Figure) -> pd.DataFrame | None:
    of_figure = figure.of(store.figures[store.figures["cell"] == cell.view.id])
    reported = of_figure[of_figure["selection"] == store.selected(cell.task)]
    if cell.state != "done" or len(reported) != 1:
        return None
    hits = cell.view.hits(figure.metric, figure.on, int(reported["round"].iloc[0]))
    if hits.empty:
        return None
    weight = 1 / hits.groupby("client")["correct"].transform("size")
    if figure.on == "local":
        sizes = cell.json("partition")["n_train"]
        counts = {i: float(sizes[i]) if figure.mean == "train_size" else 1.0 for i in hits["client"].unique()}
        weight *= hits["client"].map(counts) / sum(counts.values())
    return pd.DataFrame({"sample": hits["sample"], "weight": weight, "hits": 100 * weight * hits["correct"]})
