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
        _tasks_table(store),
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


def _tasks_table(store: Store) -> Table:
    """Settings that are the same for all methods of a task; those of all tasks are in the caption."""
    flat, kinds = _flat(store)
    names = [name for name, kind in kinds.items() if kind == "of tasks"]
    of_task = {task: settings for (_, task, _), settings in flat.items()}
    rows = tuple((task, tuple(words(_setting(of[name])) for name in names)) for task, of in of_task.items())
    first = next(iter(flat.values()))
    common = ", ".join(setting_text(name, first[name]) for name, kind in kinds.items() if kind == "common")
    return Table(
        "tasks", "Settings of tasks", f"Common to all cells: {common}.", "Task", tuple(map(Column, names)), rows
    )


def _settings_table(store: Store, recompute: Recompute | None) -> Table:
    """Settings that differ between the methods of a task, per row and task, with the cells that they are of.

    Those that only some methods have share a column: of one each, with many methods, most entries would be empty.
    """
    groups = _groups(store)
    flat, kinds = _flat(store)
    names = [name for name, kind in kinds.items() if kind == "of methods"]
    names = [name for name in names if any(str(settings[name]) != row for (row, _, _), settings in flat.items())]
    rows = []
    for (row, task, draw), settings in flat.items():
        cells = groups[row, task, draw]
        entries = [
            ", ".join(filter(None, (task, draw))),
            *(_setting(settings[name]) for name in names),
            _special({name: value for name, value in settings.items() if kinds.get(name) == "of some methods"}),
        ]
        entries += [recompute(cells)] if recompute else []
        rows.append((row, tuple(map(words, (*entries, " ".join(cell.view.id for cell in cells))))))
    again = ["computed again by"] if recompute else []
    heads = ("task", *(name.removeprefix("hp.") for name in names), "hyperparameters", *again, "cells")
    columns = tuple(map(Column, heads))
    places = [anchor(row, task) for row, task, _ in flat]  # that of the first draw is where numbers lead to
    anchors = tuple(place if place not in places[:at] else f"{place}/{at}" for at, place in enumerate(places))
    caption = (
        "What each method was set to on each task, beside the task's own settings, and the ids of its cells by seed."
    )
    return Table("settings", "Settings of methods", caption, "Method", columns, tuple(rows), anchors=anchors)


_SKIPPED = {"seed", *PRESENTATION}


def _groups(store: Store) -> dict[tuple[str, str, str], list[Cell]]:
    """Cells by row, task and, where tuning was drawn several times, draw: each may have chosen its own settings."""
    drawn = any(run.get("draws") for run in store.runs)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in store.cells:
        groups.setdefault((cell.row, cell.task, cell.unit if drawn else ""), []).append(cell)
    return groups


def _flat(store: Store) -> tuple[dict[tuple[str, str, str], dict[str, Any]], dict[str, str]]:
    """The settings of each group of cells, and of each setting whether it is common to all, of tasks, or of methods."""
    flat = {group: cells[-1].flat for group, cells in _groups(store).items()}
    tasks, kinds = {task for _, task, _ in flat}, {}
    for name in dict.fromkeys(name for settings in flat.values() for name in settings if name not in _SKIPPED):
        values = {(task, str(settings[name])) for (_, task, _), settings in flat.items() if name in settings}
        if not all(name in settings for settings in flat.values()):
            kinds[name] = "of some methods"
        elif len(values) > len(tasks):  # several of a task
            kinds[name] = "of methods"
        else:
            kinds[name] = "common" if len({value for _, value in values}) == 1 else "of tasks"
    return flat, kinds


def _special(settings: dict[str, Any]) -> str:
    """Settings that not all methods have."""
    return ", ".join(setting_text(name, value) for name, value in settings.items() if value is not None) or "–"


def _setting(value: Any) -> str:
    return "–" if value is None else setting_text("", value)[1:]
