"""Curves over rounds of methods whose clients' data change, with the changes marked."""

import pandas as pd

from reports.pictures.canvas import Picture, drawing, finish, legend, styles
from reports.reading.load import Store


def change_curves(store: Store, curves: pd.DataFrame) -> Picture:
    """A panel per task whose data change: mean and band over seeds, and a dotted line at each change.

    Args:
        store: cells of one protocol.
        curves: `reports.reading.changes.curves`.
    """
    lines = styles(store)
    tasks = [task for task in store.tasks if (curves["task"] == task).any()]
    with drawing(tasks, 1, panel=(4.6, 2.8)) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            part = curves[curves["task"] == task]
            for row in store.rows:
                by_place = part[part["row"] == row].groupby(["round", "after"])["value"]
                mean, std = by_place.mean(), by_place.std(ddof=1)
                rounds = mean.index.get_level_values("round")
                axis.plot(rounds, mean, **lines[row])
                if std.notna().any():
                    colour = lines[row]["color"]
                    axis.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
            for number in sorted(set(part[part["after"] == 1]["round"])):
                axis.axvline(number, color="#888888", linewidth=0.8, linestyle=":", zorder=0)
            axis.locator_params("x", integer=True)
            axis.set(title=task, xlabel="rounds", ylabel="PM accuracy (%)")
        legend(canvas, lines)
        caption = (
            "Test accuracy of personalized models on their clients' own tests, weighted by training size, against "
            "rounds: mean and standard deviation over seeds. A dotted line is a change of the data; there the same "
            "models are scored twice, on the tests before and after it."
        )
        return finish(canvas, "changes", "Accuracy over changes of the data", caption)
