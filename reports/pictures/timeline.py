"""Timelines of clients: the first versions of a run on the simulated clock (Figure 2 of the SCD paper)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from reports.pictures.canvas import COLOURS, Picture, drawing, finish, legend
from reports.reading.load import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "download": COLOURS[4],
    "training": COLOURS[0],
    "personal training": COLOURS[5],
    "upload": COLOURS[2],
}
"""Kinds of work with their colours; idle time is left white."""

CLIENTS = 8
"""Clients in a picture: enough to see who waits for whom."""


def timelines(store: Store) -> Picture | None:
    """A panel per method of the first task: client by time, of the first seed; None where no time was kept.

    All panels share the seconds of their axis, so that what is shorter is faster.
    """
    panels = {row: spans for row, spans in _first_cells(store) if len(spans)}
    if not panels:
        return None
    shown = min(CLIENTS, max(spans["client"].nunique() for spans in panels.values()))
    done = (cell for cell in store.cells if cell.task == store.tasks[0] and cell.state == "done")
    everyone = max((cell.trained for cell in done), default=shown)
    counted = f"all {everyone} clients" if shown == everyone else f"{shown} of {everyone} clients"
    end = max(float(spans["end"].max()) for spans in panels.values())
    with drawing(list(panels), 1) as (canvas, axes):
        for axis, (row, spans) in zip(axes, panels.items(), strict=False):
            clients = sorted(spans["client"].unique())[:CLIENTS]
            for place, client in enumerate(clients):
                _bars(axis, place, spans[spans["client"] == client])
            versions = spans.groupby("round")["start"].min().iloc[1:]
            for start in versions:  # when the next model was sent
                axis.axvline(start, color="black", linewidth=1.2, linestyle=(0, (1, 2)))
            axis.set(title=row, xlabel="simulated seconds", ylabel="client", xlim=(0, end))
            axis.set_yticks(range(len(clients)), [str(client) for client in clients])
            axis.set_ylim(len(clients) - 0.4, -0.6)
            axis.grid(visible=False)
        legend(canvas, {kind: {"color": colour, "linewidth": 6} for kind, colour in KINDS.items()})
        caption = (
            f"What {counted} did until the first versions were done, communication below computing; "
            "white: idle. A dotted line: the server sends a new version."
        )
        return finish(canvas, "timeline", "Timeline", caption)


def _first_cells(store: Store) -> Iterator[tuple[str, pd.DataFrame]]:
    table = store.table("timeline")
    for row in store.rows:
        spans = table[(table["row"] == row) & (table["task"] == store.tasks[0])]
        yield row, spans[spans["seed"] == spans["seed"].min()] if len(spans) else spans


def _bars(axis: "Axes", place: int, spans: pd.DataFrame) -> None:
    for kind, group in spans.groupby("kind"):
        computing = "training" in str(kind)
        spaces = [(start, end - start) for start, end in zip(group["start"], group["end"], strict=True)]
        axis.broken_barh(spaces, (place - 0.4 if computing else place + 0.05, 0.4), color=KINDS[str(kind)])
