"""Pictures of a study, from its trials: history, slices, importances, curves, heat maps and Pareto fronts."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.pictures.canvas import COLOURS, Picture, drawing, finish, legend
from sweeps.fair import Chosen
from sweeps.space import Dimension, is_number
from sweeps.study import Study

if TYPE_CHECKING:
    import optuna
    from matplotlib.axes import Axes
    from optuna.trial import FrozenTrial

METRICS = ("gm", "pm")
_COLOUR = dict(zip(METRICS, COLOURS, strict=False))
_PRUNED = "#999999"
_TREES = 64
_LEGEND = {metric.upper(): {"color": _COLOUR[metric]} for metric in METRICS}


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
            _draw_against(axis, choice, dimension, marker="o", ls="", ms=4)
        legend(canvas, _LEGEND)
        title = f"Slices of {choice.arm.label}, {choice.arm.title}"
        caption = (
            f"Validation {choice.arm.score} of the trials that came to their end, against each searched setting alone."
        )
        return finish(canvas, name, title, caption)


def curves(choices: Sequence[Chosen]) -> Picture:
    """Validation accuracy of GM and PM against the one setting of a grid study, a panel per arm."""
    with drawing([choice.arm.name for choice in choices], 1) as (canvas, axes):
        for axis, choice in zip(axes, choices, strict=True):
            _draw_against(axis, choice, choice.arm.dimensions[0], marker="o")
            axis.set_title(f"{choice.arm.label}, {choice.arm.title}")
        legend(canvas, _LEGEND)
        caption = f"Validation {choices[0].arm.score} at each value of the grid, mean over the tuning seeds."
        return finish(canvas, "curves", "Sensitivity", caption)


def _draw_against(axis: "Axes", choice: Chosen, dimension: Dimension, **style: Any) -> None:
    """Draw the trials of both metrics over the values of a setting; words stand in the order of their list."""
    numeric = all(map(is_number, dimension.choices))
    for metric in METRICS:
        trials = _complete(choice, metric)
        values = [trial.params[dimension.key] for trial in trials]
        places = values if numeric else [dimension.choices.index(value) for value in values]
        points = sorted(zip(places, _percent(trials, metric), strict=True))
        axis.plot([x for x, _ in points], [y for _, y in points], color=_COLOUR[metric], **style)
    if not numeric:
        axis.set_xticks(range(len(dimension.choices)), list(map(_text, dimension.choices)))
    elif dimension.log or _spans_a_decade(dimension.choices):
        axis.set_xscale("log")
    axis.set(xlabel=dimension.name, ylabel=f"validation {choice.arm.score} (%)")


def _spans_a_decade(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= 10 * min(values)


def importances(study: Study, studies: "dict[str, optuna.Study]", choices: Sequence[Chosen]) -> Picture | None:
    """Share of the variance of validation accuracy that each setting explains (functional ANOVA).

    None where no method has two searched settings and four trials.
    """
    import optuna

    metric = study.metrics[0]
    shown = [choice for choice in choices if len(choice.arm.dimensions) > 1 and _informative(choice, metric)]
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
            axis.set_xticks(range(len(across.choices)), list(map(_text, across.choices)))
            axis.set_yticks(range(len(up.choices)), list(map(_text, up.choices)))
            axis.set(title=_label(metric, choice.arm.score), xlabel=across.name, ylabel=up.name)
            axis.grid(visible=False)
            canvas.colorbar(image, ax=axis, shrink=0.8)
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


def _label(metric: str, score: str) -> str:
    return f"{metric.upper()} validation {score} (%)"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
