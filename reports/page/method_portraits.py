"""Every method by itself: its settings, its curves, its clients, and what went wrong."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from reports.page.section import Section
from reports.pictures.canvas import Picture, drawing, finish, legend, task_colours
from reports.pictures.figures import band
from reports.reading.load import Cell, Store
from reports.reading.names import setting_text
from reports.tables.cost import curves
from reports.tables.fairness import client_accuracies
from reports.tables.table import Column, Table, words


def portraits(store: Store) -> Iterator[Section]:
    """A part of the page for each row of the tables."""
    clients = client_accuracies(store)
    for at, row in enumerate(store.rows):
        cells = [cell for cell in store.cells if cell.row == row]
        by_model = {name: curve[curve["row"] == row] for name, curve in curves(store).items()}
        pictures = (
            (_picture(at, row, store, by_model, clients[clients["row"] == row]),)
            if any(map(len, by_model.values()))
            else ()
        )
        yield Section(f"method_{at}", row, _troubles(cells), pictures=pictures, more=(_settings(at, row, cells),))


def _troubles(cells: list[Cell]) -> str:
    """Failures and warnings in words, each once."""
    states = [
        f"{cell.task}, seed {cell.seed}: {cell.state} ({cell.view.status.reason or 'no reason given'})."
        for cell in cells
        if cell.state not in ("done", "missing")
    ]
    warnings = dict.fromkeys(text for cell in cells for text in cell.view.status.warnings)
    missing = sum(cell.state == "missing" for cell in cells)
    return " ".join([*states, *([f"{missing} cells are missing."] if missing else []), *warnings])


def _settings(at: int, row: str, cells: list[Cell]) -> Table:
    """The method's own settings first, then the common ones; a value per task where they differ."""
    names = sorted(dict.fromkeys(name for cell in cells for name in cell.flat), key=lambda name: name[:3] != "hp.")
    rows = tuple((name.removeprefix("hp."), (words(_values(cells, name)),)) for name in names if name != "seed")
    seeds = sorted({cell.seed for cell in cells})
    caption = f"What the cells of {row} were given; seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}."
    return Table(f"method_{at}_settings", f"Settings of {row}", caption, "Setting", (Column("value"),), rows)


def _values(cells: list[Cell], name: str) -> str:
    texts = dict.fromkeys(setting_text("", cell.flat[name])[1:] for cell in cells if name in cell.flat)
    return "; ".join(text or "–" for text in texts)


def _picture(at: int, row: str, store: Store, curves: dict[str, pd.DataFrame], clients: pd.DataFrame) -> Picture:
    """Curves of both models, a colour per task, and the clients' accuracies."""
    panels = [name for name, curve in curves.items() if len(curve)]
    with drawing([*panels, "clients"], 1, share=False) as (canvas, axes):
        lines: dict[str, dict[str, Any]] = {task: {"color": colour} for task, colour in task_colours(store).items()}
        for task, line in lines.items():
            for axis, name in zip(axes, panels, strict=False):
                band(axis, curves[name][curves[name]["task"] == task], "round", line)
            accuracies = clients[clients["task"] == task]["accuracy"]
            if len(accuracies):
                axes[-1].ecdf(accuracies.to_numpy(), color=line["color"])
        for axis, name in zip(axes, panels, strict=False):
            axis.set(title=f"{name} accuracy (%)", xlabel="rounds")
            axis.locator_params("x", integer=True, min_n_ticks=1)
        axes[-1].set(title="share of clients at or below", xlabel="PM accuracy (%)")
        legend(canvas, lines)
        caption = "Test accuracy against rounds, mean and standard deviation over seeds; clients of all seeds."
        return finish(canvas, f"method_{at}", row, caption)
