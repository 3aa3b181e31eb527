"""Relations of clients as the methods report them: what `Method.relations` left in a cell's `relations.json`.

PGFed's coefficients (its poster's heat map), and the gradient similarities of SPFL, layer by layer (its Figures 4, 5).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reports.page.section import Section
from reports.pictures.canvas import Picture, drawing, finish
from reports.reading.load import Cell, Store

_PANEL = (3.1, 2.7)  # inches: a square and its colour bar
_TICKS = 6


def relations(store: Store) -> Section | None:
    """A part with the pictures of every row that has matrices; None where none has."""
    by_row = [list(_first_cells(store, row)) for row in store.rows]
    pictures = [_heat_maps(at, store.rows[at], shown) for at, shown in enumerate(by_row) if shown]
    return Section("relations", "How clients relate", pictures=tuple(pictures)) if pictures else None


def _first_cells(store: Store, row: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Find the first seed of each task that left matrices, with these matrices."""
    for task in store.tasks:
        contents = ((cell, cell.json("relations")) for cell in store.of(row, task) if cell.state == "done")
        first = next(((cell, content) for cell, content in contents if content is not None), None)
        if first is not None:
            yield first


def _heat_maps(at: int, row: str, shown: list[tuple[Cell, dict[str, Any]]]) -> Picture:
    panels = [(f"{cell.task}, {name}", content, name) for cell, content in shown for name in content["matrices"]]
    with drawing([title for title, _, _ in panels], 1, _PANEL, share=False) as (canvas, axes):
        for axis, (title, content, name) in zip(axes, panels, strict=True):
            image = axis.imshow(np.array(content["matrices"][name]), interpolation="nearest")
            canvas.colorbar(image, ax=axis, shrink=0.8)
            clients = content["clients"]
            places = np.unique(np.linspace(0, len(clients) - 1, _TICKS).round().astype(int))
            numbers = [str(clients[place]) for place in places]
            axis.set_xticks(places, numbers)
            axis.set_yticks(places, numbers)
            axis.set(title=title, xlabel="client", ylabel="client")
            axis.grid(visible=False)
        caption = f"{row}: after the last round of the first seed. A row: a client's values for the others."
        return finish(canvas, f"relations_{at}", f"{row}: how clients relate", caption)
