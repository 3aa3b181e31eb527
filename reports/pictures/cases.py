"""Maps of methods x cases: accuracy with its intervals, and the success of attacks."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.pictures.canvas import Picture, drawing, finish
from reports.reading.load import HEADLINE, Store
from reports.statistics import inference
from reports.tables.cases import mean_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Success = Mapping[tuple[str, str, str], Mapping[str, float]]
"""An attack's success in percent by unit, of each row, task and metric (`gm`, `pm`)."""

MODELS = {"gm": "GM", "pm": "PM"}
_EQUAL = 1e-9  # percentage points: rounding only


def heat_maps(store: Store, success: Success) -> Iterator[Picture]:
    """Methods x cases: means over tasks and seeds with their intervals; and the success of attacks, where there is any.

    Args:
        store: cells of one protocol, with cases.
        success: of backdoors.
    """
    tasks = {case: part.tasks for case, part in store.cases.items()}
    accuracies = {
        f"{figure.name} accuracy (%)": {
            (row, case): _summary(mean_scores(store, row, tasks[case], figure), store, tasks[case], figure.on)
            for row in store.rows
            for case in tasks
        }
        for figure in HEADLINE
    }
    caption = (
        f"{'; '.join(figure.text for figure in HEADLINE)}. Means over seeds, below them Student's 95 % interval; a "
        "frame marks a case's highest mean, unless all are equal."
    )
    yield _heat_map(store, "cases", "Accuracy by case", caption, accuracies, best=True)
    successes = {
        f"backdoor success, {MODELS[metric]} (%)": {
            (row, case): _summary(success.get((row, task, metric), {}), store, [task], "local")
            for row in store.rows
            for case, (task, *_) in tasks.items()
        }
        for metric in dict.fromkeys(metric for _, _, metric in success)
        if len({cell.base for cell in store.cells}) == 1
    }
    if successes:
        caption = (
            "Share of the benign clients' test samples of other classes that a model takes for the attack's target "
            "where the trigger is in them: the less, the better. Means over seeds with Student's 95 % interval."
        )
        yield _heat_map(store, "success", "Success of the backdoor by case", caption, successes, best=False)


def _summary(scores: Mapping[str, float], store: Store, tasks: list[str], on: str) -> inference.Summary:
    least = math.sqrt(sum(store.least(task, on) ** 2 for task in tasks)) / len(tasks)
    return inference.summarise(list(scores.values()), least=least)


def _heat_map(
    store: Store,
    name: str,
    title: str,
    caption: str,
    panels: dict[str, dict[tuple[str, str], inference.Summary]],
    *,
    best: bool,
) -> Picture:
    means = [summary.mean for panel in panels.values() for summary in panel.values() if summary.n]
    rows = store.rows
    cases = [case for case in store.cases if any(panel[row, case].n for panel in panels.values() for row in rows)]
    with drawing(list(panels), 1, panel=(1.2 + 0.75 * len(cases), 0.9 + 0.4 * len(rows))) as (canvas, axes):
        for axis, (heading, panel) in zip(axes, panels.items(), strict=True):
            values = np.array([[panel[row, case].mean for case in cases] for row in rows])
            axis.imshow(values, aspect="auto", cmap="cividis", vmin=min(means), vmax=max(means))
            filled = np.nan_to_num(values, nan=-1)
            lowest = np.where(np.isnan(values), np.inf, values).min(axis=0)
            highest = np.where(filled.max(axis=0) - lowest > _EQUAL, filled.max(axis=0), np.inf)
            for at, row in enumerate(rows):
                for across, case in enumerate(cases):
                    if (summary := panel[row, case]).n:
                        dark = summary.mean < (min(means) + max(means)) / 2
                        _entry(axis, (across, at), summary, "white" if dark else "black")
                        if best and summary.mean >= highest[across] - _EQUAL:
                            _frame(axis, across, at)
            axis.set(title=heading)
            axis.set_xticks(range(len(cases)), cases)
            axis.set_yticks(range(len(rows)), rows)
            axis.tick_params(length=0)
            axis.grid(visible=False)
            axis.spines[:].set_visible(False)
        return finish(canvas, name, title, caption)


def _entry(axis: "Axes", place: tuple[int, int], summary: inference.Summary, colour: str) -> None:
    across, at = place
    low, high = summary.percent
    interval = "" if math.isnan(low) else f"{low:.1f}–{high:.1f}"
    text: dict[str, Any] = {"ha": "center", "color": colour}
    axis.text(across, at - 0.12 if interval else at, f"{summary.mean:.1f}", va="center", fontsize=8.5, **text)
    axis.text(across, at + 0.28, interval, va="center", fontsize=6.5, **text)


def _frame(axis: "Axes", across: int, at: int) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((across - 0.46, at - 0.46), 0.92, 0.92, fill=False, edgecolor="#d55e00", linewidth=1.8))
