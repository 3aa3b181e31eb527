"""The pictures of a report that are about curves, partitions, samples, clients, settings and ranks."""

import base64
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bench.data import Floats
from reports.pictures.canvas import (
    SMALL,
    Picture,
    colour_bar,
    drawing,
    finish,
    legend,
    saved,
    shortened,
    style_context,
    styles,
)
from reports.reading.load import HEADLINE, Figure, Store
from reports.statistics.inference import CriticalDifference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BESIDE = 2.5  # inches that a name on one side of the ranks may take


def convergence(store: Store, curves: dict[str, pd.DataFrame], x: str = "round") -> Picture:
    """Accuracy against rounds, megabytes or seconds: a panel per figure and task, mean and band over seeds.

    Args:
        curves: `reports.tables.cost.curves` by name of the figure (GM, PM).
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
        for axis, (figure, task) in zip(axes, itertools.product(figures, store.tasks), strict=True):
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
    """Clients x classes of each task's first seed; the darker, the more training samples."""
    by_task = {task: _counts(store, task) for task in store.tasks}
    shown = {task: counts for task, counts in by_task.items() if counts is not None}
    most = max((counts.max() for counts in shown.values()), default=1.0)
    with drawing(list(shown), 1) as (canvas, axes):
        for axis, (task, counts) in zip(axes, shown.items(), strict=True):
            image = axis.imshow(
                counts.T, aspect="auto", origin="lower", cmap="Blues", norm="symlog", vmin=0, vmax=most,
                interpolation="nearest",
            )  # fmt: skip
            axis.grid(visible=False)
            axis.set(title=task, xlabel="client", ylabel="class")
            axis.locator_params(integer=True)
        colour_bar(canvas, image, axes, "training samples")
        caption = "Training samples per client and class in the first seed of each task."
        return finish(canvas, "partitions", "Partitions", caption)


def distribution(store: Store, clients: pd.DataFrame) -> Picture:
    """Share of clients whose personalized model is at or below an accuracy, a panel per task."""
    lines = styles(store)
    with drawing(store.tasks, 1) as (canvas, axes):
        for axis, task in zip(axes, store.tasks, strict=True):
            for row in store.rows:
                accuracies = clients[(clients["row"] == row) & (clients["task"] == task)]["accuracy"]
                if len(accuracies):
                    axis.ecdf(accuracies.to_numpy(), **lines[row])
            axis.set(title=task, xlabel="PM accuracy of a client (%)", ylabel="share of clients")
        legend(canvas, lines)
        caption = (
            "Share of clients (all seeds together) whose personalized model is at or below an accuracy: the further "
            "right and the steeper, the better for everyone. The left tail shows the clients that are served worst."
        )
        return finish(canvas, "clients", "Accuracy client by client", caption)


def gain_by_size(store: Store, gains: pd.DataFrame) -> Picture:
    """Mean gain over `local` of five groups of clients, by how much training data they have."""
    lines = {row: style for row, style in styles(store).items() if row in set(gains["row"])}
    tasks = [task for task in store.tasks if (gains["task"] == task).any()]
    with drawing(tasks, 1) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            task_gains = gains[gains["task"] == task]
            fifth = np.ceil(5 * task_gains["n_train"].rank(pct=True))
            for row in lines:
                groups = task_gains[task_gains["row"] == row].groupby(fifth)[["n_train", "gain"]].mean()
                axis.plot(groups["n_train"], groups["gain"], marker="o", markersize=3, **lines[row])
            axis.axhline(0, color="#777777", linewidth=0.8)
            axis.set(title=task, xlabel="training samples of a client", ylabel="gain over local (points)")
        legend(canvas, lines)
        caption = (
            "Gain of the personalized model over training alone, in percentage points, by how much training data a "
            "client has: mean over fifths of the clients."
        )
        how = "The clients of all seeds together, from those with the least to those with the most training data."
        return finish(canvas, "gain", "Who gains from joining", caption, how)


def critical_difference(result: CriticalDifference, figure: Figure) -> Picture:
    """Average ranks on an axis, methods that do not differ significantly joined by a bar (Demsar 2006)."""
    half = math.ceil(len(result.names) / 2)
    height = 0.9 + 0.22 * half + 0.12 * len(result.cliques)
    with drawing([""], 1, panel=(7.0, height)) as (canvas, axes):
        axis = axes[0]
        worst = len(result.names)
        top = 0.6 * len(result.cliques)
        names = shortened(result.names, _BESIDE, SMALL).values()
        for k, (name, rank) in enumerate(zip(names, result.ranks, strict=True)):
            left = k < half
            depth = top + 1 + (k if left else worst - 1 - k)
            edge = 1 if left else worst  # not beyond: the layout makes room for text at the axis' ends
            axis.plot([rank, rank, edge], [0, depth, depth], color="#444444", linewidth=0.8, clip_on=False)
            text = f"{name} ({rank:.2f}) " if left else f" {name} ({rank:.2f})"
            axis.text(edge, depth, text, ha="right" if left else "left", va="center", fontsize=SMALL)
        for level, (first, last) in enumerate(result.cliques):
            height = 0.4 + 0.6 * level
            axis.plot([result.ranks[first] - 0.05, result.ranks[last] + 0.05], [height, height], color="k", linewidth=3)
        axis.set(xlim=(1, worst), ylim=(top + half + 1, 0), yticks=[])
        axis.locator_params("x", integer=True)
        axis.xaxis.tick_top()
        axis.grid(visible=False)
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.spines["top"].set_visible(True)
        caption = (
            f"Average rank over {result.tasks} tasks ({figure.text}; 1 is best). A bar joins methods that cannot be "
            "told apart."
        )
        how = (
            f"Friedman's p = {result.friedman_p:.2g}. Methods are told apart by Wilcoxon's signed-rank test with "
            "Holm's correction at the 5 % level."
        )
        return finish(canvas, f"ranks_{figure.name.lower()}", f"Ranks, {figure.name}", caption, how)


def band(axis: "Axes", curve: pd.DataFrame, x: str, line: dict[str, Any], *further: str) -> None:
    """Mean and standard deviation over seeds, where all seeds were evaluated: by round, and `further` columns."""
    if curve.empty or curve[x].isna().all():
        return
    by_place = curve.groupby(["round", *further])
    whole = by_place.size() == curve["seed"].nunique()
    across = by_place[x].mean()[whole]
    mean, std = by_place["accuracy"].mean()[whole], by_place["accuracy"].std(ddof=1)[whole]
    axis.plot(across, mean, **line)
    if std.notna().any():
        axis.fill_between(across, mean - std, mean + std, color=line["color"], alpha=0.18, linewidth=0)


def _counts(store: Store, task: str) -> Floats | None:
    """`[clients, classes]` training samples of a task's first cell that has a partition."""
    for cell in store.cells:
        if cell.task == task and (partition := cell.json("partition")) is not None:
            return np.array(partition["counts"], dtype=float)
    return None


_INCH = 0.5  # of an image on paper


def samples(store: Store) -> Iterator[Picture]:
    """A picture for each task with shifts, of its first cell that has kept samples."""
    for number, task in enumerate(store.tasks):
        cells = (cell for cell in store.cells if cell.task == task)
        content = next((kept for cell in cells if (kept := cell.json("samples")) is not None), None)
        if content is not None and content["clients"]:
            yield _sample_picture(task, number, content)


def images(shape: list[int], text: str) -> npt.NDArray[np.uint8]:
    """`[n, height, width]` of one channel, else `[n, height, width, 3]`, of what a cell has kept."""
    x = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, *shape)
    return x[:, 0] if shape[0] == 1 else x[:, :3].transpose(0, 2, 3, 1)


def _sample_picture(task: str, number: int, content: dict[str, Any]) -> Picture:
    from matplotlib.figure import Figure

    rows = content["clients"]
    columns = max(len(row["labels"]) for row in rows)
    caption = f"Training samples of {len(rows)} clients with their labels, after the shifts of {task} (first cell)."
    with style_context():
        canvas = Figure(figsize=(1.2 + _INCH * columns, 0.4 + 1.5 * _INCH * len(rows)), layout="constrained")
        grid = canvas.subplots(len(rows), columns, squeeze=False)
        for axes, row in zip(grid, rows, strict=True):
            for axis in axes:
                axis.axis("off")
            shown = zip(axes, images(content["shape"], row["images"]), row["labels"], strict=False)
            for axis, image, label in shown:
                axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                (name,) = shortened([label], _INCH, 7).values()
                axis.set_title(name, fontsize=7, fontweight="normal", pad=1)
            axes[0].text(-0.3, 0.5, f"client {row['client']}", transform=axes[0].transAxes, ha="right", fontsize=7)
        canvas.draw_without_rendering()
        canvas.set_layout_engine(None)  # as in `lay_out`
        return saved(canvas, f"samples_{number}", f"What clients see: {task}", caption)
