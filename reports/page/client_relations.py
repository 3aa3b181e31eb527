"""Relations of clients as the methods report them: what `Method.relations` left in a cell's `relations.json`.

PGFed's coefficients (its poster's heat map, and coefficient against local size) and the gradient similarities of SPFL,
layer by layer (its Figures 4 and 5).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.data import Floats
from reports.page.section import Section
from reports.pictures.canvas import COLOURS, MARKERS, Picture, drawing, finish, legend
from reports.reading.load import Cell, Store

_PANEL = (3.1, 2.7)  # inches: a square and its colour bar
_TICKS = 6
_UNEQUAL = 1.5  # the largest client over the smallest, from where size is an axis


def relations(store: Store) -> Section | None:
    """A part with the pictures of every row that has matrices; None where none has."""
    pictures: list[Picture] = []
    for at, row in enumerate(store.rows):
        if shown := list(_first_cells(store, row)):
            pictures += [_heat_maps(at, row, shown), _means(at, row, shown)]
    return Section("relations", "How clients relate", pictures=tuple(pictures)) if pictures else None


def weight_of_others(matrix: Floats) -> Floats:
    """Mean of each column without the diagonal, `[clients]`: the average weight that the others give to a client.

    Args:
        matrix: `[clients, clients]`.
    """
    return np.asarray((matrix.sum(axis=0) - np.diag(matrix)) / max(1, len(matrix) - 1))


def _first_cells(store: Store, row: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Find the first seed of each task that left matrices, with these matrices."""
    for task in store.tasks:
        contents = ((cell, cell.json("relations")) for cell in store.of(row, task) if cell.state == "done")
        first = next(((cell, content) for cell, content in contents if content is not None), None)
        if first is not None:
            yield first


def _heat_maps(at: int, row: str, shown: list[tuple[Cell, dict[str, Any]]]) -> Picture:
    panels = [(f"{cell.task}\n{name}", content, name) for cell, content in shown for name in content["matrices"]]
    with drawing([title for title, _, _ in panels], 1, _PANEL, share=False) as (canvas, axes):
        for axis, (title, content, name) in zip(axes, panels, strict=True):
            image = axis.imshow(np.array(content["matrices"][name]), interpolation="nearest")
            canvas.colour_bar(image, axis)
            clients = content["clients"]
            places = np.unique(np.linspace(0, len(clients) - 1, _TICKS).round().astype(int))
            numbers = [str(clients[place]) for place in places]
            axis.set_xticks(places, numbers)
            axis.set_yticks(places, numbers)
            axis.set(title=title, xlabel="client", ylabel="client")
            axis.grid(visible=False)
        caption = f"{row}: after the last round of the first seed. A row: a client's values for the others."
        return finish(canvas, f"relations_{at}", f"{row}: how clients relate", caption)


def _means(at: int, row: str, shown: list[tuple[Cell, dict[str, Any]]]) -> Picture:
    """Draw what all others make of a client: over its training samples, or by matrix where all have about as many."""
    by_size = any(max(content["n_train"]) > _UNEQUAL * min(content["n_train"]) for _, content in shown)
    names = list(dict.fromkeys(name for _, content in shown for name in content["matrices"]))
    styles: dict[str, dict[str, Any]] = {
        name: {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)], "ls": ""}
        for k, name in enumerate(names)
    }
    with drawing([cell.task for cell, _ in shown], 1, _PANEL) as (canvas, axes):
        for axis, (cell, content) in zip(axes, shown, strict=True):
            for place, name in enumerate(names):
                values = weight_of_others(np.array(content["matrices"][name]))
                across = content["n_train"] if by_size else [place] * len(values)
                axis.plot(across, values, markersize=3, alpha=0.7, **styles[name])
            axis.set(title=cell.task, xlabel="training samples of a client" if by_size else "")
            if not by_size:
                axis.set_xticks([])
        axes[0].set_ylabel("mean of all others")
        legend(canvas, styles)
        caption = f"{row}: a point is a client: the mean of its column in the matrix above, without its own entry."
        return finish(canvas, f"relations_{at}_means", f"{row}: the others' values for a client", caption)
