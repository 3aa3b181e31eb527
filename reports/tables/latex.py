"""The main table for a paper: which figures, which tasks, which way round, and methods under their own names."""

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bench.errors import UserError
from bench.plugin import METHODS
from reports.reading.load import HEADLINE, Store
from reports.tables.accuracy import EPSILON
from reports.tables.table import Column, Table, TableEntry


@dataclass(frozen=True)
class Latex:
    """Options of `main.tex`.

    Attributes:
        figures: `gm`, `pm` or `both`.
        transpose: tasks as rows, methods as columns.
        columns: parts of tasks' names, of which one must occur; empty: all tasks.
        names: what methods are called instead of the rows' names.
    """

    figures: Literal["gm", "pm", "both"] = "both"
    transpose: bool = False
    columns: Sequence[str] = ()
    names: Mapping[str, str] | None = None


def check(options: Latex, tasks: Sequence[str]) -> None:
    """Refuse columns that no task has.

    Raises:
        UserError: a part is in no task's name.
    """
    for part in options.columns:
        if not any(part in task for task in tasks):
            raise UserError(f"--columns {part}: no task has that in its name. The tasks: {'; '.join(tasks)}")


def arranged(table: Table, options: Latex) -> Table:
    """Arrange the main table (a column per task and figure) as the options say."""
    keep = [
        at
        for at, column in enumerate(table.columns)
        if (options.figures in (column.name.lower(), "both") or column.name.startswith(EPSILON))
        and (not options.columns or any(part in column.group for part in options.columns))
    ]
    columns = [table.columns[at] for at in keep]
    if options.figures != "both":
        columns = [column if column.name.startswith(EPSILON) else Column(column.group) for column in columns]
    names = options.names or {}
    rows = [(names.get(row, row), tuple(_renamed(entries[at], names) for at in keep)) for row, entries in table.rows]
    caption = table.caption
    for figure in HEADLINE:
        if options.figures not in (figure.metric, "both"):
            caption = caption.replace(f"{figure.text}; ", "").replace(f"; {figure.text}", "")
    table = replace(table, columns=tuple(columns), rows=tuple(rows), caption=caption)
    return _transposed(table) if options.transpose else table


def _renamed(entry: TableEntry, names: Mapping[str, str]) -> TableEntry:
    """Spell the method of a note `(= fedavg)` as its row."""
    before, equals, row = entry.note.removesuffix(")").partition("= ")
    return replace(entry, note=f"{before}= {names.get(row, row)})") if equals else entry


def display_names(store: Store) -> dict[str, str]:
    """Spell each row's method as the method's file does (`fedavg`: FedAvg); rows under another label are left out."""
    names = {}
    for cell in store.cells:
        settings = cell.view.settings
        if cell.row == settings.method or cell.row.startswith(f"{settings.method}, "):
            names[cell.row] = _spelling(settings.method) + cell.row.removeprefix(settings.method)
    return names


def _spelling(method: str) -> str:
    try:
        declaration = METHODS.declaration(method)
    except UserError:  # a plugin's, which is not here
        return method
    text = f"{_module_docstring(declaration.__module__)} {declaration.__doc__} {declaration.__name__}"
    plain = method.replace("_", "")
    spelled = (word for word in re.findall(r"\w[\w-]*", text) if word.replace("-", "").lower() == plain)
    return next((word for word in spelled if word != word.lower()), method)


def _module_docstring(name: str) -> str | None:
    """The docstring of a module, read from its file if it is not imported."""
    if name in sys.modules:
        return sys.modules[name].__doc__
    file = importlib.util.find_spec(name)
    return ast.get_docstring(ast.parse(Path(file.origin).read_bytes())) if file and file.origin else None


def _transposed(table: Table) -> Table:
    labels = [f"{column.group}, {column.name}" if column.group else column.name for column in table.columns]
    rows = tuple((label, tuple(entries[at] for _, entries in table.rows)) for at, label in enumerate(labels))
    columns = tuple(Column(row) for row, _ in table.rows)
    notes = tuple(note.replace("best of its column", "best of its row") for note in table.notes)
    return replace(table, corner="Task", columns=columns, rows=rows, notes=notes)
