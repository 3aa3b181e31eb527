"""Pictures, as PNG and SVG with the same bytes every time; colours of Okabe and Ito (2008) for colour-blind readers."""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reports.accuracy import HEADLINE
from reports.figure import Figure
from reports.load import Store, setting_text
from reports.statistics import CriticalDifference, Floats, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", "-.", ":")
"""Line styles: seven colours by four styles tell 28 methods apart, neighbours even without colour."""

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "figure.facecolor": "white",
    "svg.hashsalt": "pfl-bench",  # else names inside the SVG are random
}
_PANEL = (3.1, 2.3)  # inches
_ACROSS = 4  # panels side by side at most
_DECADE = 10  # settings that span this factor get a logarithmic axis


@dataclass(frozen=True)
class Picture:
    """A figure on its way to files and page."""

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes


def convergence(store: Store, curves: dict[str, pd.DataFrame], x: str = "round") -> Picture:
    """Accuracy against rounds, megabytes or seconds: a panel per figure and task, mean and band over seeds.

    Args:
        store: cells of one protocol.
        curves: `reports.cost.curves` by name of the figure (GM, PM).
        x: `round`, `megabytes` or `seconds`.
    """
    labels = {
        "round": "rounds",
        "megabytes": "megabytes sent and received, all clients",
        "seconds": "simulated seconds",
    }
    figures = [figure for figure in HEADLINE if len(curves[figure.name])]
    lines = styles(store)
    with drawing(store.tasks, len(figures)) as (canvas, axes):
        for axis, (figure, task) in zip(axes, _panels(figures, store.tasks), strict=True):
            curve = curves[figure.name]
            for row in store.rows:
                band(axis, curve[(curve["row"] == row) & (curve["task"] == task)], x, lines[row])
            axis.locator_params("x", integer=x == "round")
            axis.set(title=task, xlabel=labels[x], ylabel=f"{figure.name} accuracy (%)")
        legend(canvas, lines)
        names = " and ".join(figure.text for figure in figures)
        caption = f"Test accuracy ({names}) against {labels[x]}: mean and standard deviation over seeds."
        return finish(canvas, f"convergence_{x}", f"Convergence against {labels[x].split(',')[0]}", caption)


def partitions(store: Store) -> Picture:
    """Clients x classes of each task's first seed; the area of a bubble is the number of training samples."""
    found = {task: _counts(store, task) for task in store.tasks}
    shown = {task: counts for task, counts in found.items() if counts is not None}
    with drawing(list(shown), 1) as (canvas, axes):
        for axis, (task, counts) in zip(axes, shown.items(), strict=True):
            client, label = np.nonzero(counts)
            across, up = _PANEL[0] * 55 / counts.shape[0], _PANEL[1] * 50 / counts.shape[1]  # points between centres
            area = np.maximum(0.3, (1.3 * min(across, up)) ** 2 * counts[client, label] / counts.max())
            axis.scatter(client, label, s=area, color=COLOURS[0], alpha=0.8, linewidths=0, rasterized=True)
            axis.margins(*(0.8 / max(1, size - 1) for size in counts.shape))  # room for the dots at the edges
            axis.set(title=task, xlabel="client (dot area: samples)", ylabel="class")
            axis.locator_params(integer=True)
        caption = "Training samples per client and class (area of a bubble) in the first seed of each task."
        return finish(canvas, "partitions", "Partitions", caption)


def distribution(store: Store, clients: pd.DataFrame) -> Picture:
    """Share of clients whose personalized model is at or below an accuracy, a panel per task."""
    lines = styles(store)
    with drawing(store.tasks, 1) as (canvas, axes):
        for axis, task in zip(axes, store.tasks, strict=True):
            for row in store.rows:
                own = clients[(clients["row"] == row) & (clients["task"] == task)]["accuracy"]
                if len(own):
                    axis.ecdf(own.to_numpy(), **lines[row])
            axis.set(title=task, xlabel="PM accuracy of a client (%)", ylabel="share of clients")
        legend(canvas, lines)
        caption = (
            "Share of clients (all seeds together) whose personalized model is at or below an accuracy: the further "
            "right and the steeper, the better for everyone; the left tail are the clients served worst."
        )
        return finish(canvas, "clients", "Accuracy client by client", caption)


def gain_by_size(store: Store, gains: pd.DataFrame) -> Picture:
    """Mean gain over `local` of five groups of clients, by how much training data they have."""
    lines = {row: style for row, style in styles(store).items() if row in set(gains["row"])}
    with drawing(store.tasks, 1) as (canvas, axes):
        for axis, task in zip(axes, store.tasks, strict=True):
            here = gains[gains["task"] == task]
            fifth = np.ceil(5 * here["n_train"].rank(pct=True))
            for row in lines:
                groups = here[here["row"] == row].groupby(fifth)[["n_train", "gain"]].mean()
                axis.plot(groups["n_train"], groups["gain"], marker="o", markersize=3, **lines[row])
            axis.axhline(0, color="#777777", linewidth=0.8)
            axis.set(title=task, xlabel="training samples of a client", ylabel="gain over local (points)")
        legend(canvas, lines)
        caption = (
            "Gain of the personalized model over training alone, in percentage points: mean over fifths of the clients "
            "(all seeds together), from those with the least to those with the most training data."
        )
        return finish(canvas, "gain", "Who gains from joining", caption)


def varied(store: Store) -> list[str]:
    """Settings with three values or more along one curve: those that a sensitivity picture can show.

    They are numeric, or given by client, as `stragglers` is: then the clients are counted.
    """
    names = dict.fromkeys(name for cell in store.cells for name in cell.flat if name not in ("seed", "partition_seed"))
    return [name for name in names if any(len(points) >= 3 for points in _points(store, name).values())]


def sensitivity(store: Store, setting: str, chosen: str) -> Picture:
    """Accuracy against a numeric setting that the grid varies: mean and standard deviation over seeds."""
    points = _points(store, setting)
    panels = list(dict.fromkeys(panel for _, panel in points))
    curves = list(dict.fromkeys(curve for curve, _ in points))
    values = [value for entries in points.values() for value in entries]
    with drawing(panels, len(HEADLINE)) as (canvas, axes):
        for axis, (figure, panel) in zip(axes, _panels(HEADLINE, panels), strict=True):
            for k, curve in enumerate(curves):
                entries = sorted(points.get((curve, panel), {}).items())
                scores = [store.scores(*names, figure.metric, figure.on, figure.mean, chosen) for _, names in entries]
                runs = [summarise(list(one.values())) for one in scores]
                mean, std = [run.mean for run in runs], np.nan_to_num([run.std for run in runs])
                axis.errorbar([x for x, _ in entries], mean, std, marker="o", ms=3, capsize=2, label=curve, **_style(k))
            if min(values) > 0 and max(values) / min(values) >= _DECADE:
                axis.set_xscale("log")
            axis.set(title=panel, xlabel=setting_text(setting, "")[:-1], ylabel=f"{figure.name} accuracy (%)")
        legend(canvas, {curve: _style(k) for k, curve in enumerate(curves)})
        caption = "Test accuracy against a setting: mean and standard deviation over seeds."
        short = setting.removeprefix("hp.")
        return finish(canvas, f"sensitivity_{short}", f"Sensitivity to {short}", caption)


def critical_difference(result: CriticalDifference, figure: Figure) -> Picture:
    """Average ranks on an axis, methods that do not differ significantly joined by a bar (Demsar 2006)."""
    half = math.ceil(len(result.names) / 2)
    with drawing([""], 1, panel=(6.5, 0.9 + 0.22 * half + 0.12 * len(result.cliques))) as (canvas, axes):
        axis = axes[0]
        worst = len(result.names)
        top = 0.6 * len(result.cliques)
        for k, (name, rank) in enumerate(zip(result.names, result.ranks, strict=True)):
            left = k < half
            depth = top + 1 + (k if left else worst - 1 - k)
            edge = 1 - 0.3 if left else worst + 0.3
            axis.plot([rank, rank, edge], [0, depth, depth], color="#444444", linewidth=0.8, clip_on=False)
            text = f"{name} ({rank:.2f})"
            axis.text(edge, depth, f"{text} " if left else f" {text}", ha="right" if left else "left", va="center")
        for level, (first, last) in enumerate(result.cliques):
            height = 0.4 + 0.6 * level
            axis.plot([result.ranks[first] - 0.05, result.ranks[last] + 0.05], [height, height], color="k", linewidth=3)
        axis.set(xlim=(1, worst), ylim=(top + half + 1, 0), yticks=[], xticks=range(1, worst + 1))
        axis.xaxis.tick_top()
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.spines["top"].set_visible(True)
        caption = (
            f"Average rank over {result.tasks} tasks ({figure.text}; 1 is best; Friedman p = {result.friedman_p:.2g}). "
            "A bar joins methods that Wilcoxon's signed-rank test with Holm's correction cannot tell apart at 5 %."
        )
        return finish(canvas, f"ranks_{figure.name.lower()}", f"Ranks, {figure.name}", caption)


def _panels(figures: Sequence[Figure], tasks: Sequence[str]) -> list[tuple[Figure, str]]:
    return [(figure, task) for figure in figures for task in tasks]


@contextmanager
def drawing(
    panels: Sequence[str], blocks: int, panel: tuple[float, float] = _PANEL, *, share: bool = True
) -> "Iterator[tuple[Canvas, list[Axes]]]":
    """Axes for `blocks` x `panels`, a block after the other, at most four side by side.

    Args:
        panels: what stands in them.
        blocks: how often.
        panel: width and height of one, in inches.
        share: whether the panels of a block have the same y axis.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    lines = math.ceil(len(panels) / _ACROSS)
    across = math.ceil(len(panels) / lines)
    settings: Any = {**mpl.rcParamsDefault, **STYLE}  # a reader's matplotlibrc changes no byte
    with mpl.rc_context(settings):
        size = (panel[0] * across + 0.4, panel[1] * lines * blocks + 0.5)
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots(lines * blocks, across, squeeze=False).reshape(blocks, -1)
        for block in axes:
            for axis in block[1 : len(panels)] if share else []:
                axis.sharey(block[0])
            for axis in block[len(panels) :]:
                axis.set_visible(False)
        yield canvas, [axis for block in axes for axis in block[: len(panels)]]


def _style(k: int) -> dict[str, Any]:
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)]}


def styles(store: Store) -> dict[str, dict[str, Any]]:
    """Every row's style, the same in all pictures."""
    return {row: _style(k) for k, row in enumerate(store.rows)}


def band(axis: "Axes", curve: pd.DataFrame, x: str, line: dict[str, Any]) -> None:
    """Mean and standard deviation over seeds, where all seeds were evaluated."""
    if curve.empty or curve[x].isna().all():
        return
    by_round = curve.groupby("round")
    whole = by_round.size() == curve["trial"].nunique()
    across = by_round[x].mean()[whole] if x != "round" else by_round.size()[whole].index
    mean, std = by_round["accuracy"].mean()[whole], by_round["accuracy"].std(ddof=1)[whole]
    axis.plot(across, mean, **line)
    if std.notna().any():
        axis.fill_between(across, mean - std, mean + std, color=line["color"], alpha=0.18, linewidth=0)


def legend(canvas: "Canvas", lines: dict[str, dict[str, Any]]) -> None:
    """One legend below all panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **style) for label, style in lines.items()]
    longest = max(len(label) for label in lines)
    across = max(1, int(canvas.get_figwidth() / (0.6 + 0.075 * longest)))
    lines_of_text = math.ceil(len(handles) / across)
    canvas.set_figheight(canvas.get_figheight() + 0.17 * (lines_of_text - 1))  # the panels keep their height
    canvas.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), across))


def _counts(store: Store, task: str) -> Floats | None:
    """`[clients, classes]` training samples of a task's first cell that has a partition."""
    for cell in store.cells:
        if cell.task == task and (partition := cell.json("partition")) is not None:
            return np.array(partition["counts"], dtype=float)
    return None


def _points(store: Store, setting: str) -> dict[tuple[str, str], dict[float, tuple[str, str]]]:
    """By (curve, panel): the rows and tasks along it, by the value of `setting`."""
    points: dict[tuple[str, str], dict[float, tuple[str, str]]] = {}
    for cell in store.cells:
        given = cell.flat.get(setting)
        value = len(given) if isinstance(given, dict) and all(isinstance(key, int) for key in given) else given
        if isinstance(value, int | float):
            text = setting_text(setting, given)
            names = [f"{name}, ".replace(f", {text}, ", ", ")[:-2] for name in (cell.row, cell.task)]
            points.setdefault((names[0], names[1]), {})[value] = (cell.row, cell.task)
    return points


def finish(canvas: "Canvas", name: str, title: str, caption: str) -> Picture:
    """The finished drawing in both formats."""
    canvas.draw_without_rendering()  # lays the panels out, once for both formats
    canvas.set_layout_engine("none")
    svg, png = io.BytesIO(), io.BytesIO()
    canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None}, dpi=160)
    canvas.savefig(png, format="png", metadata={"Software": None}, dpi=160)
    return Picture(name, title, caption, svg.getvalue(), png.getvalue())
