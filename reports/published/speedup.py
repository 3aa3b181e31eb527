"""Speed-up by not waiting, until a target is reached: Tables 4 and 9 of the SCD paper."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.settings import PRESENTATION
from reports.published.comparison import PublishedTable, agrees, setting_differences
from reports.reading.load import PM, Cell, Store
from reports.statistics import inference
from reports.tables.cost import reached
from reports.tables.table import Column, Table, TableEntry, number, words

WAITING = ("wait_free", "server", "pm_until_broadcast")
"""Settings that decide whether clients and the server wait for each other; cells that differ only in them are compared.
"""


def speedup_table(
    store: Store, curve: pd.DataFrame, printed: list[PublishedTable], targets: Mapping[str, float]
) -> Table | None:
    """Speed-ups over the cell that waits (`wait_free: off`, no server rule), per method and target; None without one.

    Args:
        curve: `reports.tables.cost.curves` of the personalized models.
        printed: published tables of the run; those of speed-ups give targets and their factors.
        targets: target by task, from `reports.tables.cost.targets`.
    """
    pairs = list(_pairs(store))
    if not pairs:
        return None
    of_speed = [table for table in printed if "speedup" in table.metrics]
    factors = {
        (table.dataset, row.method, row.axes.get("pm_epochs"), float(row.axes["target_acc"])): row.mean
        for table in of_speed
        for row in table.rows
        if row.metric == "speedup"
    }
    rows = []
    for task in [task for task in store.tasks if task in targets]:  # of an unfinished grid, those with a curve
        for row, base in dict.fromkeys((cell.row, base.row) for cell, base in pairs if cell.task == task):
            cell = store.of(row, task)[0]
            data = next((table.dataset for table in of_speed if agrees(cell.flat, "dataset", table.dataset)), "")
            for target in sorted({target for *_, target in factors} | {targets[task]}):
                paper = factors.get((data, cell.view.label, cell.flat.get("hp.personal_epochs"), target))
                rows.append((row, tuple(_line(curve, task, row, base, target, paper))))
    caption = (
        "How much faster a method that does not wait reaches the target than the one in this row: rounds, seconds per "
        "round and their product, the speed-up, with n seeds in which both got there."
    )
    how = (
        f"Until the first of two evaluations in a row at or above the target ({PM.text}). The waiting method's rounds, "
        "seconds per round and seconds are divided by those of the method in this row: geometric mean, and the factor "
        "of one standard deviation. Seconds are simulated."
    )
    heads = ("task", "compared with", "target %", "rounds", "seconds per round", "speed-up", "paper")
    notes = tuple(dict.fromkeys(note for table in of_speed for note in setting_differences(store, table)))
    title, columns = "Speed-up by not waiting", tuple(map(Column, heads))
    return Table("speedup", title, caption, "Method", columns, tuple(rows), notes=notes, how=how)


def _pairs(store: Store) -> Iterator[tuple[Cell, Cell]]:
    """Pair every cell with the one that waits and is the same in all else."""
    waiting = {_all_else(cell): cell for cell in store.cells if _waits(cell)}
    for cell in store.cells:
        if not _waits(cell) and (base := waiting.get(_all_else(cell))) is not None:
            yield cell, base


def _waits(cell: Cell) -> bool:
    return not cell.view.settings.wait_free and cell.view.settings.server is None


def _all_else(cell: Cell) -> str:
    return str(cell.view.settings.model_dump(exclude={*WAITING, *PRESENTATION, "rounds", "eval_every"}))


def _line(curve: pd.DataFrame, task: str, row: str, base: str, target: float, paper: Any) -> Iterator[TableEntry]:
    by_row = {name: _by_seed(curve, task, name, target) for name in (row, base)}
    ratios = [
        (base_run[0] / run[0], (base_run[1] / base_run[0]) / (run[1] / run[0]), base_run[1] / run[1])
        for seed, run in by_row[row].items()
        if (base_run := by_row[base].get(seed)) is not None
    ]
    seeds = curve[(curve["row"] == row) & (curve["task"] == task)]["seed"].nunique()
    yield from (words(task), words(base), number(target, decimals=0))
    for k in range(3):
        yield _mean([ratio[k] for ratio in ratios], seeds)
    yield words("–") if paper is None else number(paper, decimals=2)


def _by_seed(curve: pd.DataFrame, task: str, row: str, target: float) -> dict[str, tuple[float, float]]:
    """Rounds and seconds to the target, of the seeds that reach it."""
    row_curve = curve[(curve["row"] == row) & (curve["task"] == task)]
    firsts = {str(seed): reached(group, target) for seed, group in row_curve.groupby("seed")}
    return {seed: (first["round"], first["seconds"]) for seed, first in firsts.items() if first is not None}


def _mean(ratios: list[float], seeds: int) -> TableEntry:
    """Geometric mean: as much faster in one seed and slower in another is no speed-up. `seeds` is how many ran."""
    if not ratios:
        return words(f"– (n=0 of {seeds})")
    mean, factor = inference.geometric(ratios)
    spread = "" if np.isnan(factor) else f"×/÷ {factor:.2f}; "
    return TableEntry(mean, note=f"({spread}n={len(ratios)} of {seeds})", decimals=2)
