"""Pictures of a grid's cases: methods x cases, and accuracy against what noise is worth and against the attackers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.results.privacy import PROTECTED
from reports.pictures.canvas import Picture, drawing, finish, legend, style_of
from reports.reading.load import HEADLINE, Cell, Figure, Store
from reports.reading.names import Cases, names_of
from reports.statistics import inference
from reports.tables.cases import mean_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Success = Mapping[tuple[str, str, str], Mapping[str, float]]
"""An attack's success in percent by unit, of each row, task and metric (`gm`, `pm`)."""
Scores = Callable[[str, str], Mapping[str, float]]
"""Scores in percent by unit, of a row and task."""

_FEWEST = 3
"""Values of a setting from which on a curve is drawn."""
_NAMES = {"gm": "GM", "pm": "PM"}
_EQUAL = 1e-9  # percentage points: rounding only


def heat_maps(store: Store, chosen: str, success: Success) -> Iterator[Picture]:
    """Methods x cases: means over tasks and seeds with their intervals; and the success of attacks, where there is any.

    Args:
        store: cells of one protocol, with cases.
        chosen: which round is reported.
        success: of backdoors.
    """
    tasks = {case: part.tasks for case, part in store.cases.items()}
    accuracies = {
        f"{figure.name} accuracy (%)": {
            (row, case): _summary(mean_scores(store, row, tasks[case], figure, chosen), store, tasks[case], figure.on)
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
        f"backdoor success, {_NAMES[metric]} (%)": {
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
        canvas.least = 1.2 + 0.5 * len(cases)
        for axis, (heading, panel) in zip(axes, panels.items(), strict=True):
            values = np.array([[panel[row, case].mean for case in cases] for row in rows])
            axis.imshow(values, aspect="auto", cmap="cividis", vmin=min(means), vmax=max(means))
            filled = np.nan_to_num(values, nan=-1)
            highest = np.where(np.ptp(filled, axis=0) > _EQUAL, filled.max(axis=0), np.inf)
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
    low, high = inference.within_percent(summary.mean, (summary.high - summary.low) / 2)
    interval = "" if math.isnan(low) else f"{low:.1f}–{high:.1f}"
    text: dict[str, Any] = {"ha": "center", "color": colour}
    axis.text(across, at - 0.12 if interval else at, f"{summary.mean:.1f}", va="center", fontsize=8.5, **text)
    axis.text(across, at + 0.28, interval, va="center", fontsize=6.5, **text)


def _frame(axis: "Axes", across: int, at: int) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((across - 0.46, at - 0.46), 0.92, 0.92, fill=False, edgecolor="#d55e00", linewidth=1.8))


def trends(store: Store, chosen: str, success: Success) -> Iterator[Picture]:
    """Accuracy against epsilon, and against the share of attackers, where a method has three values of it.

    Args:
        store: cells of one protocol.
        chosen: which round is reported.
        success: of backdoors, which is drawn beside accuracy.
    """
    measures = {f"{figure.name} accuracy (%)": _scores(store, figure, chosen) for figure in HEADLINE}
    for kind in PROTECTED:
        without: dict[str, Any] = {"channel": (), "dp_sgd": None, "selection": "uniform"}
        if len(points := _curves(_epsilons(store, kind), without)):
            text = (
                f"Accuracy against what noise is worth to a {kind} (ε: smaller is more private; what it covers is in "
                "the notes above): mean over seeds with Student's 95 % interval."
            )
            yield _trend(store, f"epsilon_{kind}", f"Accuracy against ε of a {kind}", text, points, measures)
    attacks = [(cell, cell.flat["attack"] or {"name": "", "share": 0.0}) for cell in store.cells]
    for name in dict.fromkeys(attack["name"] for _, attack in attacks if attack["name"]):
        of_kind = [(cell, float(attack["share"])) for cell, attack in attacks if attack["name"] in ("", name)]
        if len(points := _curves(of_kind, {"attack": None})):
            entries = set(zip(points["row"], points["task"], strict=True))
            metrics = dict.fromkeys(metric for row, task, metric in success if (row, task) in entries)
            further = {f"backdoor success, {_NAMES[metric]} (%)": _successes(success, metric) for metric in metrics}
            text = "Means over seeds with Student's 95 % interval."
            title = f"Accuracy against the share of attackers, {name.replace('_', ' ')}"
            yield _trend(store, f"share_{name}", title, text, points, measures | further)


def _scores(store: Store, figure: Figure, chosen: str) -> Scores:
    return lambda row, task: store.scores(row, task, figure, chosen)


def _successes(success: Success, metric: str) -> Scores:
    return lambda row, task: success.get((row, task, metric), {})


def _epsilons(store: Store, kind: str) -> list[tuple[Cell, float]]:
    """The largest epsilon of the cells of an entry, for each of them; infinite without noise."""
    figures = store.figures[["row", "task", f"epsilon_{kind}"]]
    if not figures[f"epsilon_{kind}"].notna().any():
        return []
    largest = figures.groupby(["row", "task"])[f"epsilon_{kind}"].max().fillna(math.inf)
    return [
        (cell, float(largest[cell.row, cell.task])) for cell in store.cells if (cell.row, cell.task) in largest.index
    ]


def _curves(values: Sequence[tuple[Cell, float]], without: dict[str, Any]) -> pd.DataFrame:
    """Points of curves: `panel`, `curve`, `x`, and the `row` and `task` of the tables; of curves with enough points.

    Args:
        values: x of each cell.
        without: settings that x stands for: what else tells cells apart names curves and panels.
    """
    if len({x for _, x in values}) < _FEWEST:
        return pd.DataFrame()
    views = [replace(cell.view, settings=cell.view.settings.model_copy(update=without)) for cell, _ in values]
    names = names_of(views, {}, Cases([""] * len(views), frozenset()))
    points = pd.DataFrame(
        [(name.task, name.row, x, cell.row, cell.task) for name, (cell, x) in zip(names, values, strict=True)],
        columns=["panel", "curve", "x", "row", "task"],
    ).drop_duplicates()
    enough = points.groupby(["panel", "curve"])["x"].transform("nunique") >= _FEWEST
    return points[enough].sort_values("x", kind="stable")


def _trend(
    store: Store, name: str, title: str, caption: str, points: pd.DataFrame, measures: dict[str, Scores]
) -> Picture:
    """A panel per measure and task, a curve with a band per method; x at its values, the infinite one at the end."""
    panels, curves = list(dict.fromkeys(points["panel"])), list(dict.fromkeys(points["curve"]))
    curves.sort(key=lambda curve: next((k for k, row in enumerate(store.rows) if row.startswith(curve)), 0))
    finite = sorted({x for x in points["x"] if math.isfinite(x)})
    logarithmic = finite[0] > 0 and finite[-1] > 10 * finite[0]
    end = 4 * finite[-1] if logarithmic else finite[-1] + 0.4 * (finite[-1] - finite[0] or 1)
    lines = {curve: style_of(k) for k, curve in enumerate(curves)}
    along = title.partition(" against ")[2].partition(",")[0].removeprefix("the ")
    with drawing(panels, len(measures)) as (canvas, axes):
        places = [(measure, panel) for measure in measures for panel in panels]
        for axis, (measure, panel) in zip(axes, places, strict=True):
            of_panel = points[points["panel"] == panel]
            for curve in curves:
                entries = of_panel[of_panel["curve"] == curve][["x", "row", "task"]].itertuples(index=False)
                scored = [(min(x, end), scores) for x, row, task in entries if (scores := measures[measure](row, task))]
                _band(axis, scored, lines[curve])
            if logarithmic:
                axis.set_xscale("log")
            ticks = finite if len(finite) <= 6 else [finite[0], finite[-1]]
            unending = [end] if np.isinf(of_panel["x"]).any() else []
            axis.set_xticks([*ticks, *unending], [*(f"{x:.3g}" for x in ticks), *(["none"] if unending else [])])
            axis.minorticks_off()
            axis.set(title=panel, xlabel=along, ylabel=measure)
        legend(canvas, lines)
        return finish(canvas, name, title, caption)


def _band(axis: "Axes", scored: list[tuple[float, Mapping[str, float]]], line: dict[str, Any]) -> None:
    summaries = [inference.summarise(list(scores.values())) for _, scores in scored]
    across, means = [x for x, _ in scored], [summary.mean for summary in summaries]
    axis.plot(across, means, marker="o", markersize=3, **line)
    ends = [inference.within_percent(summary.mean, (summary.high - summary.low) / 2) for summary in summaries]
    if ends:
        low, high = zip(*ends, strict=True)
        axis.fill_between(across, low, high, color=line["color"], alpha=0.15, linewidth=0)
