"""Images that clients see: those of the first clients of each task whose samples are shifted."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reports.pictures.canvas import Picture, saved, style_context
from reports.reading.load import Store

_INCH = 0.5  # of an image on paper


def pictures(store: Store) -> Iterator[Picture]:
    """A picture for each task with shifts, of its first cell that has kept samples."""
    for number, task in enumerate(store.tasks):
        cells = (cell for cell in store.cells if cell.task == task)
        content = next((samples for cell in cells if (samples := cell.json("samples")) is not None), None)
        if content is not None and content["clients"]:
            yield _picture(task, number, content)


def images(shape: list[int], text: str) -> npt.NDArray[np.uint8]:
    """`[n, height, width]` of one channel, else `[n, height, width, 3]`, of what a cell has kept."""
    x = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)
    return x[:, 0] if shape[0] == 1 else x[:, :3].transpose(0, 2, 3, 1)


def _picture(task: str, number: int, content: dict[str, Any]) -> Picture:
    from matplotlib.figure import Figure

    rows = content["clients"]
    columns = max(len(row["labels"]) for row in rows)
    caption = f"Training samples of {len(rows)} clients with their labels, after the shifts of {task}; its first cell."
    with style_context():
        canvas = Figure(figsize=(1.2 + _INCH * columns, 0.4 + 1.5 * _INCH * len(rows)), layout="constrained")
        grid = canvas.subplots(len(rows), columns, squeeze=False)
        for axes, row in zip(grid, rows, strict=True):
            for axis in axes:
                axis.axis("off")
            shown = zip(axes, images(content["shape"], row["images"]), row["labels"], strict=False)
            for axis, image, label in shown:
                axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                axis.set_title(label[:10], fontsize=7, fontweight="normal", pad=1)
            axes[0].text(-0.3, 0.5, f"client {row['client']}", transform=axes[0].transAxes, ha="right", fontsize=7)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
        return saved(canvas, f"samples_{number}", f"What clients see: {task}", caption)
