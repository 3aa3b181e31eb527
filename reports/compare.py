"""What changed between two runs of one grid, cell by cell."""

from pathlib import Path

import numpy as np

from reports.accuracy import HEADLINE, selection
from reports.load import Store, load
from reports.tables import Column, Entry, Table, number, words

Key = tuple[str, str, str, str]
"""Protocol, row, task, trial."""

_ABSENT = ("not in the grid", [np.nan] * len(HEADLINE))


def compare_runs(before: Path, after: Path) -> Table:
    """One row per cell that differs in its state or its reported accuracies, the largest difference first.

    Cells are matched by protocol, label, task and seed, not by id: an id changes with the code of a method.

    Raises:
        UserError: a folder is not a run.
    """
    old, new = _cells(load([before])), _cells(load([after]))
    keys = list(dict.fromkeys([*old, *new]))
    rows: list[tuple[float, str, tuple[Entry, ...]]] = []
    for key in keys:
        protocol, row, task, trial = key
        (state, figures), (new_state, new_figures) = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if state == new_state and np.array_equal(figures, new_figures, equal_nan=True):
            continue
        entries = [words(text) for text in (task, trial, protocol, state, new_state)]
        for x, y in zip(figures, new_figures, strict=True):
            entries += [number(x), number(y), number(y - x, decimals=3, signed=True)]
        differences = np.abs(np.subtract(new_figures, figures))
        largest = np.inf if np.isnan(differences).all() else float(np.nanmax(differences))
        rows.append((largest, row, tuple(entries)))
    rows.sort(key=lambda row: -row[0])
    heads = [Column(name) for name in ("task", "seed", "protocol", "state before", "state after")]
    heads += [Column(name, figure.name) for figure in HEADLINE for name in ("before", "after", "Δ")]
    caption = f"{len(keys)} cells, {len(keys) - len(rows)} the same in both runs, {len(rows)} that differ (percent)."
    return Table("compare", "What changed", caption, "Method", tuple(heads), tuple((row, e) for _, row, e in rows))


def _cells(store: Store) -> dict[Key, tuple[str, list[float]]]:
    """State and reported accuracies (percent; nan where there is none) of every cell."""
    found: dict[Key, tuple[str, list[float]]] = {}
    for protocol in store.protocols:
        part = store.of_protocol(protocol)
        chosen = selection(part)
        for cell in part.cells:
            by_figure = [part.scores(cell.row, cell.task, f.metric, f.on, f.mean, chosen) for f in HEADLINE]
            figures = [scores.get(cell.trial, np.nan) for scores in by_figure]
            found[protocol, cell.row, cell.task, cell.trial] = (cell.state, figures)
    return found
