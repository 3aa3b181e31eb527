"""Pictures of a study, from its trials: history, slices, parallel coordinates, importances, curves and heat maps."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.pictures.canvas import COLOURS, Picture, drawing, finish, legend
from sweeps.fair import Chosen
from sweeps.space import Dimension
from sweeps.study import Study

if TYPE_CHECKING:
    import optuna
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

METRICS = ("gm", "pm")
_COLOUR = dict(zip(METRICS, COLOURS, strict=False))
_PRUNED = "#999999"
_TREES = 64


def history(study: Study, choices: Sequence[Chosen]) -> Picture:
    """Validation accuracy by trial, the best so far as a line; a pruned trial stands at its last value."""
    metric = study.metrics[0]
    with drawing([f"{choice.arm.label}, {choice.arm.title}" for choice in choices], 1) as (canvas, axes):
        for axis, choice in zip(axes, choices, strict=True):
            complete = _complete(choice, metric)
            numbers, values = [trial.number for trial in complete], _percent(complete, metric)
            axis.scatter(numbers, values, s=14, color=_COLOUR[metric])
            axis.step(numbers, np.maximum.accumulate(values) if values else [], where="post", color=_COLOUR[metric])
            pruned = [trial for trial in choice.trials if trial.values is not None and trial not in complete]
            axis.scatter(
                [trial.number for trial in pruned],
                [100 * trial.values[0] for trial in pruned],
                s=14, marker="x", color=_PRUNED, linewidths=1,
            )  # fmt: skip
            axis.locator_params("x", integer=True)
            axis.set(
                title=f"{choice.arm.label}, {choice.arm.title}", xlabel="trial", ylabel=_label(metric, choice.arm.score)
            )
        score = choices[0].arm.score
        caption = f"Validation {score} of each trial, the best so far as a line. Crosses: pruned, at their last value."
        return finish(canvas, "history", "Optimisation history", caption)


def slices(choice: Chosen, name: str) -> Picture:
    """Validation accuracy of GM and PM against each searched setting."""
    dimensions = choice.arm.dimensions
    with drawing([searched.key for searched in dimensions], 1) as (canvas, axes):
        for axis, dimension in zip(axes, dimensions, strict=True):
            for metric in METRICS:
                trials = _complete(choice, metric)
                style: Any = {"s": 14, "color": _COLOUR[metric], "label": metric.upper()}
                axis.scatter(_positions(dimension, trials), _percent(trials, metric), **style)
            _scale(axis, dimension)
            axis.set(xlabel=dimension.name, ylabel=f"validation {choice.arm.score} (%)")
        legend(canvas, {metric.upper(): {"color": _COLOUR[metric]} for metric in METRICS})
        title = f"Slices of {choice.arm.label}, {choice.arm.title}"
        caption = (
            f"Validation {choice.arm.score} of the trials that came to their end, against each searched setting alone."
        )
        return finish(canvas, name, title, caption)


def parallel_coordinates(study: Study, choice: Chosen, name: str) -> Picture:
    """A line for each trial through all of its settings to its validation accuracy."""
    import matplotlib as mpl

    metric = study.metrics[0]
    dimensions, trials = choice.arm.dimensions, _complete(choice, metric)
    values = np.array(_percent(trials, metric))
    columns = [_share(dimension, trials) for dimension in dimensions] + [_rescaled(values)]
    colours = mpl.colormaps["viridis"]
    with drawing(["all"], 1, panel=(1.7 * len(columns) + 1, 2.8)) as (canvas, axes):
        for row in np.argsort(values, kind="stable"):
            heights = [column[row] for column in columns]
            axes[0].plot(range(len(columns)), heights, color=colours(columns[-1][row]), linewidth=1, alpha=0.8)
        for at, dimension in enumerate(dimensions):
            low, high = _ends(dimension)
            axes[0].text(at, -0.04, low, ha="center", va="top")
            axes[0].text(at, 1.04, high, ha="center", va="bottom")
        axes[0].text(len(dimensions), -0.04, f"{values.min():.2f}", ha="center", va="top")
        axes[0].text(len(dimensions), 1.04, f"{values.max():.2f}", ha="center", va="bottom")
        names = [*(searched.name for searched in dimensions), f"{metric.upper()} (%)"]
        axes[0].set_xticks(range(len(columns)), names)
        axes[0].set(yticks=[], ylim=(-0.15, 1.15))
        title = f"Parallel coordinates of {choice.arm.label}, {choice.arm.title}"
        caption = (
            f"A line for each trial that came to its end; its colour is its validation {choice.arm.score}, as on "
            "the right."
        )
        return finish(canvas, name, title, caption)


def importances(study: Study, studies: "dict[str, optuna.Study]", choices: Sequence[Chosen]) -> Picture | None:
    """Share of the variance of validation accuracy that each setting explains (functional ANOVA).

    None where no method has two searched settings and four trials.
    """
    import optuna

    metric = study.metrics[0]
    shown = [
        candidate for candidate in choices if len(candidate.arm.dimensions) > 1 and _informative(candidate, metric)
    ]
    if not shown:
        return None
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
    with drawing([choice.arm.name for choice in shown], 1) as (canvas, axes):
        for axis, choice in zip(axes, shown, strict=True):
            shares = optuna.importance.get_param_importances(
                studies[choice.arm.name], evaluator=evaluator, target=lambda trial: float(trial.values[0])
            )
            names = [key.rpartition(".")[2] for key in reversed(shares)]
            axis.barh(names, list(reversed(shares.values())), color=_COLOUR[metric])
            axis.set(title=f"{choice.arm.label}, {choice.arm.title}", xlabel="importance", xlim=(0, 1))
        caption = (
            f"Share of the variance of the {metric.upper()}'s validation {choices[0].arm.score} over the searched "
            "space that each setting explains alone (functional ANOVA, Hutter et al. 2014), of trials that came to "
            "their end."
        )
        return finish(canvas, "importances", "Importance of the settings", caption)


def curves(choices: Sequence[Chosen]) -> Picture:
    """Validation accuracy of GM and PM against the one setting of a grid study, a panel per arm."""
    with drawing([choice.arm.name for choice in choices], 1) as (canvas, axes):
        for axis, choice in zip(axes, choices, strict=True):
            (dimension,) = choice.arm.dimensions
            for metric in METRICS:
                trials = _complete(choice, metric)
                points = sorted(zip(_positions(dimension, trials), _percent(trials, metric), strict=True))
                style: Any = {"marker": "o", "color": _COLOUR[metric], "label": metric.upper()}
                axis.plot([x for x, _ in points], [y for _, y in points], **style)
            _scale(axis, dimension)
            title = f"{choice.arm.label}, {choice.arm.title}"
            axis.set(title=title, xlabel=dimension.name, ylabel=f"validation {choice.arm.score} (%)")
        legend(canvas, {metric.upper(): {"color": _COLOUR[metric]} for metric in METRICS})
        caption = f"Validation {choices[0].arm.score} at each value of the grid, mean over the tuning seeds."
        return finish(canvas, "curves", "Sensitivity", caption)


def heat_map(choice: Chosen, name: str) -> Picture:
    """Validation accuracy of GM and PM over the two settings of a grid study."""
    across, up = choice.arm.dimensions
    with drawing(["GM", "PM"], 1) as (canvas, axes):
        for axis, metric in zip(axes, METRICS, strict=True):
            grid = np.full((len(up.choices), len(across.choices)), math.nan)
            for trial in _complete(choice, metric):
                at = up.choices.index(trial.params[up.key]), across.choices.index(trial.params[across.key])
                grid[at] = 100 * trial.user_attrs[metric]
            image = axis.imshow(grid, origin="lower", aspect="auto", cmap="viridis")
            axis.set_xticks(range(len(across.choices)), [_text(value) for value in across.choices])
            axis.set_yticks(range(len(up.choices)), [_text(value) for value in up.choices])
            axis.set(title=_label(metric, choice.arm.score), xlabel=across.name, ylabel=up.name)
            axis.grid(visible=False)
            canvas.colour_bar(image, axis)
        title = f"Sensitivity of {choice.arm.label}, {choice.arm.title}"
        caption = f"Validation {choice.arm.score} (%) at each point of the grid, mean over the seeds."
        return finish(canvas, name, title, caption)


def front(choice: Chosen, name: str) -> Picture:
    """GM against PM of all trials; the Pareto front as a line."""
    trials = [trial for trial in _complete(choice, "gm") if "pm" in trial.user_attrs]
    points = np.array([[trial.user_attrs[metric] for metric in METRICS] for trial in trials]).reshape(-1, 2) * 100
    beaten = [((points >= point).all(axis=1) & (points > point).any(axis=1)).any() for point in points]
    best = points[~np.array(beaten, dtype=bool)]
    best = best[np.argsort(best[:, 0], kind="stable")]
    with drawing(["front"], 1) as (canvas, axes):
        axes[0].scatter(points[:, 0], points[:, 1], s=14, color=_PRUNED)
        axes[0].plot(best[:, 0], best[:, 1], "o-", color=_COLOUR["pm"])
        axes[0].set(xlabel=_label("gm", choice.arm.score), ylabel=_label("pm", choice.arm.score))
        title = f"Pareto front of {choice.arm.label}, {choice.arm.title}"
        return finish(canvas, name, title, "Each trial; on the line: no other one is better in both figures.")


def _informative(choice: Chosen, metric: str) -> bool:
    values = _percent(_complete(choice, metric), metric)
    return len(values) >= 4 and min(values) < max(values)


def _complete(choice: Chosen, metric: str) -> "list[FrozenTrial]":
    return [trial for trial in choice.trials if trial.state.name == "COMPLETE" and metric in trial.user_attrs]


def _percent(trials: "Sequence[FrozenTrial]", metric: str) -> list[float]:
    return [100 * trial.user_attrs[metric] for trial in trials]


def _position(dimension: Dimension, value: Any) -> float:
    """Place of a value on its dimension's axis: at itself, or in the order of the list if it is no number."""
    return float(value) if _numeric(dimension) else float(dimension.choices.index(value))


def _positions(dimension: Dimension, trials: "Sequence[FrozenTrial]") -> list[float]:
    return [_position(dimension, trial.params[dimension.key]) for trial in trials]


def _numeric(dimension: Dimension) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in dimension.choices)


def _scale(axis: "Axes", dimension: Dimension) -> None:
    if not _numeric(dimension):
        axis.set_xticks(range(len(dimension.choices)), [_text(value) for value in dimension.choices])
    elif dimension.log or _spans_a_decade(dimension.choices):
        axis.set_xscale("log")


def _spans_a_decade(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= 10 * min(values)


def _share(dimension: Dimension, trials: "Sequence[FrozenTrial]") -> "np.ndarray[Any, Any]":
    """Positions as shares of the dimension's range."""
    at = np.array(_positions(dimension, trials))
    if dimension.choices:
        order = sorted({_position(dimension, value) for value in dimension.choices})
        return np.array([order.index(position) for position in at]) / (len(order) - 1)
    low, high = dimension.low, dimension.high
    if dimension.log:
        at, low, high = np.log(at), math.log(low), math.log(high)
    return np.asarray((at - low) / (high - low))


def _rescaled(values: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread else np.full(len(values), 0.5)


def _ends(dimension: Dimension) -> tuple[str, str]:
    if not dimension.choices:
        return f"{dimension.low:g}", f"{dimension.high:g}"
    ordered = sorted(dimension.choices) if _numeric(dimension) else dimension.choices
    return _text(ordered[0]), _text(ordered[-1])


def _label(metric: str, score: str) -> str:
    return f"{metric.upper()} validation {score} (%)"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
