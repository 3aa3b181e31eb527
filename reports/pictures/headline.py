"""The picture that a page begins with: accuracy of all methods over all tasks, with intervals."""

import math
from typing import TYPE_CHECKING

import numpy as np

from reports.pictures.canvas import Picture, drawing, finish, legend, task_colours
from reports.reading.load import HEADLINE, Figure, Store
from reports.statistics import inference
from reports.tables.accuracy import SELECTION_TEXT, described

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def headline(store: Store) -> Picture | None:
    """A panel per model, a line per method, the best mean over tasks on top; None where nothing was measured."""
    panels = {figure: by_row for figure in HEADLINE if (by_row := _measured(store, figure))}
    if not panels:
        return None
    colours = task_colours(store)
    rows = max(map(len, panels.values()))
    each = min(0.6, max(0.2, 0.15 + 0.06 * len(store.tasks))) if rows <= 30 else 0.2
    with drawing(["all"], len(panels), panel=(4.7, 0.6 + each * rows)) as (canvas, axes):
        for axis, (figure, by_row) in zip(axes, panels.items(), strict=True):
            derived = {cell.row for cell in store.cells if figure.metric in cell.view.status.derived}
            _panel(axis, by_row, colours, derived)
            models = {"gm": "generic model", "pm": "personalized models"}[figure.metric]
            axis.set(title=f"{figure.name}: {models}", xlabel="test accuracy (%)")
        legend(canvas, {task: {"color": colour, "marker": "o", "ls": "-", "ms": 4} for task, colour in colours.items()})
        caption = (
            "A dot is a method's mean over seeds on a task with its 95 % interval, hollow where the model is derived "
            "and not trained by the method; a black mark is its mean over tasks, by which methods are ordered."
        )
        how = (
            f"{described(store)}. {'; '.join(figure.text for figure in panels)}. Intervals are Student's on the logit "
            f"scale, cut at the panel's edge. Methods that lack a task have no mean over tasks and stand below. "
            f"{SELECTION_TEXT[store.chosen].capitalize()}."
        )
        return finish(canvas, "headline", "Accuracy of all methods", caption, how)


def _measured(store: Store, figure: Figure) -> dict[str, dict[str, inference.Summary]]:
    """Summarise the accuracies of each row by task, rows that lack a task and those with the worst mean first."""
    summaries = {}
    for row in store.rows:
        by_task = {task: list(store.scores(row, task, figure).values()) for task in store.tasks}
        if any(by_task.values()):
            summaries[row] = {
                task: inference.summarise(values, least=store.least(task, figure.on))
                for task, values in by_task.items()
                if values
            }
    whole = len(store.tasks)  # a mean over fewer tasks, which may be easier ones, has no place among the others
    return dict(sorted(summaries.items(), key=lambda entry: (len(entry[1]) == whole, _mean(entry[1]))))


def _mean(tasks: dict[str, inference.Summary]) -> float:
    return float(np.mean([summary.mean for summary in tasks.values()]))


def _panel(
    axis: "Axes", summaries: dict[str, dict[str, inference.Summary]], colours: dict[str, str], derived: set[str]
) -> None:
    tasks = list(colours)
    reach = []  # what the axis must show: all means, and intervals of what was trained
    for at, (row, by_task) in enumerate(summaries.items()):
        for task, summary in by_task.items():
            place = at + 0.6 * (0.5 - (tasks.index(task) + 0.5) / len(tasks))
            low, high = summary.percent
            hollow = row in derived
            if not math.isnan(low):
                axis.plot([low, high], [place] * 2, color=colours[task], linewidth=1.4, alpha=0.4 if hollow else 0.75)
            face = "white" if hollow else colours[task]
            axis.plot(summary.mean, place, "o", color=colours[task], markerfacecolor=face, markersize=4)
            spread = 0.0 if hollow or math.isnan(summary.std) else summary.std  # of one seed there is none
            reach += [summary.mean - spread, min(100, summary.mean + spread)]
        if len(by_task) == len(tasks) > 1:
            axis.plot([_mean(by_task)] * 2, [at - 0.36, at + 0.36], color="#111111", linewidth=1.3)
        if at % 2:
            axis.axhspan(at - 0.5, at + 0.5, color="#f4f6f8", zorder=0, linewidth=0)
    low, high = np.nanmin(reach), np.nanmax(reach)
    margin = 0.03 * (high - low) + 0.2
    axis.set(xlim=(low - margin, min(100, high + margin)), ylim=(-0.6, len(summaries) - 0.4))
    axis.set_yticks(range(len(summaries)), list(summaries))
    axis.tick_params("y", length=0)
    axis.grid(visible=False, axis="y")
    axis.spines["left"].set_visible(False)
