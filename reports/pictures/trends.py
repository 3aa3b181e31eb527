"""Accuracy against what a grid varies: against epsilon, the share of attackers, and any numeric setting."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bench.results.privacy import PROTECTED
from bench.settings import Settings
from reports.pictures.canvas import Picture, drawing, finish, legend, style_of
from reports.pictures.cases import MODELS, Success
from reports.reading.load import HEADLINE, Cell, Figure, Store
from reports.reading.names import Cases, names_of, setting_text
from reports.statistics import inference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Scores = Callable[[str, str], Mapping[str, float]]
"""Scores in percent by unit, of a row and task."""

_FEWEST = 3
"""Values of a setting from which on a curve is drawn."""
_DECADE = 10  # settings that span this factor get a logarithmic axis
_INTERVALS = "Mean over seeds with Student's 95 % interval."


def trends(store: Store, success: Success) -> Iterator[Picture]:
    """Accuracy against epsilon, and against the share of attackers, where a method has three values of it.

    Args:
        success: of backdoors, which is drawn beside accuracy.
    """
    measures = {f"{figure.name} accuracy (%)": _scores(store, figure) for figure in HEADLINE}
    for kind in PROTECTED:
        if len(points := _curves(_epsilons(store, kind), _without_noise)):
            text = f"{_INTERVALS} A smaller ε is more private; the notes say what it protects."
            title = f"Accuracy against ε of a {kind}"
            yield _trend(store, f"epsilon_{kind}", title, f"ε of a {kind}", text, points, measures)
    attacks = [(cell, cell.flat["attack"] or {"name": "", "share": 0.0}) for cell in store.cells]
    for name in dict.fromkeys(attack["name"] for _, attack in attacks if attack["name"]):
        of_kind = [(cell, float(attack["share"])) for cell, attack in attacks if attack["name"] in ("", name)]
        if len(points := _curves(of_kind, _without_attack)):
            entries = set(zip(points["row"], points["task"], strict=True))
            metrics = dict.fromkeys(metric for row, task, metric in success if (row, task) in entries)
            further = {f"backdoor success, {MODELS[metric]} (%)": _successes(success, metric) for metric in metrics}
            title = f"Accuracy against the share of attackers, {name.replace('_', ' ')}"
            along = "share of attackers"
            yield _trend(store, f"share_{name}", title, along, _INTERVALS, points, measures | further)


def sensitivity(store: Store) -> Iterator[Picture]:
    """Accuracy against each numeric setting, or one given by client, whose clients are counted, with three values."""
    flat = [cell.flat for cell in store.cells]
    measures = {f"{figure.name} accuracy (%)": _scores(store, figure) for figure in HEADLINE}
    for name in dict.fromkeys(name for settings in flat for name in settings if name not in _SEEDS):
        counted = [(cell, _number(settings.get(name))) for cell, settings in zip(store.cells, flat, strict=True)]
        values = [(cell, value) for cell, value in counted if value is not None]
        if len(points := _curves(values, _without(name, values))):
            short, along = name.removeprefix("hp."), setting_text(name, "")[:-1]
            yield _trend(store, f"sensitivity_{short}", f"Sensitivity to {short}", along, _INTERVALS, points, measures)


_SEEDS = ("seed", "partition_seed")


def _number(value: Any) -> float | None:
    if isinstance(value, dict) and all(isinstance(key, int) for key in value):
        return len(value)
    return value if isinstance(value, int | float) else None


def _without(name: str, values: Sequence[tuple[Cell, float]]) -> Callable[[Settings], Settings]:
    """Cells' settings but for one, which is in all of them as in the first."""
    if name.startswith("hp."):
        short = name.removeprefix("hp.")
        return lambda settings: settings.model_copy(update={"hp": {**settings.hp, short: 0}})
    return lambda settings: settings.model_copy(update={name: getattr(values[0][0].view.settings, name)})


def _without_noise(settings: Settings) -> Settings:
    return settings.model_copy(update={"channel": (), "dp_sgd": None, "selection": "uniform"})


def _without_attack(settings: Settings) -> Settings:
    return settings.model_copy(update={"attack": None})


def _scores(store: Store, figure: Figure) -> Scores:
    return lambda row, task: store.scores(row, task, figure)


def _successes(success: Success, metric: str) -> Scores:
    return lambda row, task: success.get((row, task, metric), {})


def _epsilons(store: Store, kind: str) -> list[tuple[Cell, float]]:
    """The largest epsilon of the cells of an entry, for each of them; infinite without noise."""
    others = [f"epsilon_{other}" for other in PROTECTED if other != kind]
    figures = store.figures[store.figures[others].isna().all(axis=1)]
    if not figures[f"epsilon_{kind}"].notna().any():
        return []
    largest = figures.groupby(["row", "task"])[f"epsilon_{kind}"].max().fillna(math.inf)
    return [
        (cell, float(largest[cell.row, cell.task])) for cell in store.cells if (cell.row, cell.task) in largest.index
    ]


def _curves(values: Sequence[tuple[Cell, float]], without: Callable[[Settings], Settings]) -> pd.DataFrame:
    """Points of curves: `panel`, `curve`, `x`, and the `row` and `task` of the tables; of curves with enough points.

    Args:
        values: x of each cell.
        without: takes what x stands for out of settings: what else tells cells apart names curves and panels.
    """
    if len({x for _, x in values}) < _FEWEST:
        return pd.DataFrame()
    views = [replace(cell.view, settings=without(cell.view.settings)) for cell, _ in values]
    names = names_of(views, {}, Cases([""] * len(views), frozenset()))
    points = pd.DataFrame(
        [(name.task, name.row, x, cell.row, cell.task) for name, (cell, x) in zip(names, values, strict=True)],
        columns=["panel", "curve", "x", "row", "task"],
    ).drop_duplicates()
    single = points.groupby(["row", "task"])["x"].transform("nunique") == 1  # else each draw of tuning chose one
    points = points[single]
    # Entries that differ in what x does not say, such as two channels without noise, are no points of one curve.
    points = points[points.groupby(["panel", "curve", "x"])["row"].transform("size") == 1]
    enough = points.groupby(["panel", "curve"])["x"].transform("nunique") >= _FEWEST
    return points[enough].sort_values("x", kind="stable")


def _trend(
    store: Store, name: str, title: str, along: str, caption: str, points: pd.DataFrame, measures: dict[str, Scores]
) -> Picture:
    """A panel per measure and task, a curve with a band per method; x at its values, the infinite one at the end."""
    panels, curves = list(dict.fromkeys(points["panel"])), list(dict.fromkeys(points["curve"]))
    curves.sort(key=lambda curve: next((k for k, row in enumerate(store.rows) if row.startswith(curve)), 0))
    finite = sorted({x for x in points["x"] if math.isfinite(x)})
    logarithmic = finite[0] > 0 and finite[-1] >= _DECADE * finite[0]
    end = 4 * finite[-1] if logarithmic else finite[-1] + 0.4 * (finite[-1] - finite[0] or 1)
    lines = {curve: style_of(k) for k, curve in enumerate(curves)}
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
    if not scored:
        return
    summaries = [inference.summarise(list(scores.values())) for _, scores in scored]
    across, means = [x for x, _ in scored], [summary.mean for summary in summaries]
    axis.plot(across, means, marker="o", markersize=3, **line)
    low, high = zip(*(summary.percent for summary in summaries), strict=True)
    axis.fill_between(across, low, high, color=line["color"], alpha=0.15, linewidth=0)
