"""Comparison of two runs, cell by cell: what changed."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.settings import PRESENTATION
from reports.reading.load import HEADLINE, Cell, load
from reports.reading.names import TASK_FIELDS, setting_text
from reports.tables.table import Column, Table, TableEntry, number, words

_ABSENT = ("not in the grid", [np.nan] * len(HEADLINE))


@dataclass(frozen=True, eq=False)
class _Compared:
    """A cell with its reported accuracies (percent; nan where there is none)."""

    cell: Cell
    figures: list[float]

    @property
    def place(self) -> str:
        """The cell's label, task and seed as settings: names of tasks depend on what else is in the run."""
        flat = self.cell.flat
        task = {name: flat[name] for name in (*TASK_FIELDS, "seed", "partition_seed", "protocol")}
        return json.dumps([self.cell.view.label, task], sort_keys=True)


def compare_runs(before: Path, after: Path) -> Table:
    """One row per cell that differs in its settings, state or reported accuracies, the largest difference first.

    Cells are matched by id, and what is left (ids change with code) by label, task and seed, those with the fewest
    settings that differ first.

    Raises:
        UserError: a folder is not a run.
    """
    pairs = _pairs(_cells(before), _cells(after))
    rows: list[tuple[float, str, tuple[TableEntry, ...]]] = []
    for old, new in pairs:
        (state, figures), (new_state, new_figures) = (
            _ABSENT if entry is None else (entry.cell.state, entry.figures) for entry in (old, new)
        )
        settings = "" if old is None or new is None else _settings_text(old.cell, new.cell)
        if not settings and state == new_state and np.array_equal(figures, new_figures, equal_nan=True):
            continue
        cell = (old or new).cell  # type: ignore[union-attr]  # one of them is there
        texts = (cell.task, cell.seed, cell.view.settings.protocol, settings or "–", state, new_state)
        entries = [words(text) for text in texts]
        for x, y in zip(figures, new_figures, strict=True):
            entries += [number(x), number(y), number(y - x, decimals=3, signed=True)]
        differences = np.abs(np.subtract(new_figures, figures))
        largest = np.inf if np.isnan(differences).all() else float(np.nanmax(differences))
        rows.append((largest, cell.row, tuple(entries)))
    rows.sort(key=lambda row: -row[0])
    heads = [Column(name) for name in ("task", "seed", "protocol", "settings", "state before", "state after")]
    heads += [Column(name, figure.name) for figure in HEADLINE for name in ("before", "after", "Δ")]
    caption = f"{len(pairs)} cells, {len(pairs) - len(rows)} the same in both runs, {len(rows)} that differ (percent)."
    return Table("compare", "What changed", caption, "Method", tuple(heads), tuple((row, e) for _, row, e in rows))


def _cells(run: Path) -> list[_Compared]:
    entries: list[_Compared] = []
    store = load([run])
    for part in map(store.of_protocol, store.protocols):
        for cell in part.cells:
            scores = [part.by_seed(cell.row, cell.task, figure) for figure in HEADLINE]
            entries.append(_Compared(cell, [of_seeds.get(cell.seed, np.nan) for of_seeds in scores]))
    return entries


def _pairs(old: list[_Compared], new: list[_Compared]) -> list[tuple[_Compared | None, _Compared | None]]:
    """Pair the cells of two runs, in the order of the first run; cells that only the second has come last."""
    by_id = {(entry.cell.view.id, entry.cell.view.label): entry for entry in new}
    match = {entry: by_id.pop((entry.cell.view.id, entry.cell.view.label), None) for entry in old}
    left: dict[str, list[_Compared]] = defaultdict(list)
    for entry in by_id.values():
        left[entry.place].append(entry)
    for entry in [entry for entry in old if match[entry] is None]:
        if rivals := left[entry.place]:
            match[entry] = nearest = min(rivals, key=lambda other: len(_changed(entry.cell, other.cell)))
            rivals.remove(nearest)
    return [*match.items(), *((None, entry) for rest in left.values() for entry in rest)]


def _changed(old: Cell, new: Cell) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, with both values."""
    a, b = old.flat, new.flat
    names = [name for name in dict.fromkeys([*a, *b]) if name not in PRESENTATION]
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _settings_text(old: Cell, new: Cell) -> str:
    """Settings that differ as text, such as `lr=0.1 → 0.05`."""
    texts = [
        f"{setting_text(name, x)} → {setting_text(name, y).partition('=')[2]}"
        for name, (x, y) in _changed(old, new).items()
    ]
    return ", ".join(texts)
