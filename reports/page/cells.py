"""Settings and states of all cells: the tables that the numbers of a page are traced back to."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.settings import PRESENTATION
from reports.page.section import Section
from reports.reading.load import Cell, Store
from reports.reading.names import setting_text
from reports.tables.table import Column, Table, TableEntry, number, words

Recompute = Callable[[Sequence[Cell]], str]
"""The command that computes the cells of a row, task and draw again."""


def anchor(row: str, task: str) -> str:
    """Anchor on the page at which the settings of a row and task stand."""
    return re.sub(r"\s+", "-", f"{row}/{task}")


def cells_section(store: Store, recompute: Recompute | None = None) -> Section:
    """Section of settings, states, paths and partitions; cells that are not done stand in plain sight."""
    undone = [cell for cell in store.cells if cell.state != "done"]
    letters = {path: f"path {k}" for k, path in enumerate(dict.fromkeys(map(_path, store.cells)), start=1)}
    tables = (_cells_table("undone", "Cells that are not done", undone, letters),) if undone else ()
    more = (
        _settings_table(store, recompute),
        _cells_table("cells", "Every cell", store.cells, letters),
        _partitions_table(store.cells),
        _paths_table(letters),
    )
    return Section("all_cells", "Cells", tables=tables, more=more)


def _cells_table(name: str, title: str, cells: Sequence[Cell], letters: dict[str, str]) -> Table:
    heads = ("task", "seed", "cell", "state", "rounds", "wall seconds", "partition", "path", "remarks")
    rows = tuple((cell.row, tuple(_cell_entries(cell, letters))) for cell in cells)
    caption = "State and cost of each; partitions and paths are explained in the tables below."
    return Table(name, title, caption, "Method", tuple(map(Column, heads)), rows)


def _cell_entries(cell: Cell, letters: dict[str, str]) -> Iterator[TableEntry]:
    status, timing = cell.view.status, cell.json("timing") or {}
    yield from map(words, (cell.task, cell.seed, cell.view.id, cell.state))
    yield number(status.rounds, decimals=0)
    yield number(timing["seconds"], decimals=1) if "seconds" in timing else words("–")
    yield words(str(status.partition.get("hash", "–")))
    yield words(letters[_path(cell)])
    yield words("; ".join(part for part in (status.reason, *status.warnings) if part) or "–")


def _partitions_table(cells: Sequence[Cell]) -> Table:
    """Table of partitions, each once: all methods of a task and seed have the same one."""
    partitions = {(cell.task, cell.seed): status for cell in cells if (status := cell.view.status.partition)}
    heads = tuple(map(Column, ("seed", "partition", "summary")))
    rows = tuple(
        (task, tuple(words(str(text)) for text in (seed, partition.get("hash", "–"), partition.get("summary", "–"))))
        for (task, seed), partition in partitions.items()
    )
    caption = "How the samples are spread over the clients, the same for all methods of a task and seed."
    return Table("partitions", "Partitions", caption, "Task", heads, rows)


def _paths_table(letters: dict[str, str]) -> Table:
    caption = "Machine and way of computing of the cells; on one path a cell has the same bytes every time."
    rows = tuple((letter, (words(path),)) for path, letter in letters.items())
    return Table("paths", "Paths", caption, "Path", (Column("what it is"),), rows)


def _path(cell: Cell) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell.view.status.path.items()) or "–"


def _settings_table(store: Store, recompute: Recompute | None) -> Table:
    """Settings per row and task that are not those of all cells, with the cells that they are of."""
    groups = _groups(store)
    flat = {
        group: {name: value for name, value in cells[-1].flat.items() if name not in _SKIPPED}
        for group, cells in groups.items()
    }
    first = next(iter(flat.values()))
    common = {name: value for name, value in first.items() if all(of.get(name, _NONE) == value for of in flat.values())}
    rows = []
    for (row, task, draw), settings in flat.items():
        cells = groups[row, task, draw]
        others = {name: value for name, value in settings.items() if name not in common and value not in (None, row)}
        texts = [
            ", ".join(filter(None, (task, draw))),
            _listed(others) or "–",
            *([recompute(cells)] if recompute else []),
        ]
        rows.append((row, tuple(map(words, (*texts, " ".join(cell.view.id for cell in cells))))))
    columns = map(Column, ("task", "settings", *(["computed again by"] if recompute else []), "cells"))
    places = [anchor(row, task) for row, task, _ in flat]  # that of the first draw is where numbers lead to
    anchors = tuple(place if place not in places[:at] else f"{place}/{at}" for at, place in enumerate(places))
    caption = (
        "What each method was set to on each task, and the ids of its cells by seed. "
        f"Common to all cells: {_listed(common) or 'nothing'}."
    )
    return Table("settings", "Settings", caption, "Method", tuple(columns), tuple(rows), anchors=anchors)


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(setting_text(name, value) for name, value in settings.items())


_NONE = object()
_SKIPPED = {"seed", *PRESENTATION}


def _groups(store: Store) -> dict[tuple[str, str, str], list[Cell]]:
    """Cells by row, task and, where tuning was drawn several times, draw: each may have chosen its own settings."""
    drawn = any(run.get("draws") for run in store.runs)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in store.cells:
        groups.setdefault((cell.row, cell.task, cell.unit if drawn else ""), []).append(cell)
    return groups
