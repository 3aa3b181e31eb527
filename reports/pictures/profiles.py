"""Performance profiles: the share of runs above each accuracy.

After Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".
"""

from typing import Any

import numpy as np

from bench.data import Floats
from bench.rng import generator
from reports.pictures.canvas import QUIET, Picture, drawing, finish, legend, styles
from reports.reading.load import HEADLINE, Store
from reports.tables.standings import by_unit, derived_rows

_DRAWS = 500
_POINTS = 150


def performance_profiles(store: Store) -> Picture | None:
    """Share of runs above an accuracy, of the methods that train the model, with pointwise bootstrap bands.

    None where no row has all its figures.
    """
    lines = styles(store)
    by_figure = {}
    for figure in HEADLINE:
        derived = derived_rows(store, store.tasks, figure)
        by_figure[figure] = {
            row: by_unit(store, row, store.tasks, figure) for row in store.whole(figure) if row not in derived
        }
    shown = {figure: rows for figure, rows in by_figure.items() if rows}
    if not shown:
        return None
    with drawing(["all"], len(shown), panel=(4.6, 2.8)) as (canvas, axes):
        for axis, (figure, rows) in zip(axes, shown.items(), strict=True):
            runs = np.concatenate([units for tasks in rows.values() for units in tasks])
            across = np.unique(np.append(runs, runs.min() - 0.5))
            if len(across) > _POINTS:
                across = np.linspace(across[0], across[-1], _POINTS)
            for row, tasks in rows.items():
                axis.plot(across, 100 * share_above(tasks, across), drawstyle="steps-post", **lines[row])
                if lines[row]["color"] != QUIET:
                    _, low, high = profile(tasks, across)
                    band: Any = {"color": lines[row]["color"], "alpha": 0.12, "linewidth": 0, "step": "post"}
                    axis.fill_between(across, 100 * low, 100 * high, **band)
            axis.set(xlabel=f"{figure.name} accuracy τ (%)", ylabel="runs above τ (%)", ylim=(0, 102))
        legend(canvas, {row: style for row, style in lines.items() if any(row in rows for rows in shown.values())})
        caption = (
            "Share of all runs with more than an accuracy τ, of the methods that train the model, with 95 % bands. A "
            "curve above another at every τ dominates it."
        )
        how = (
            "All tasks with their seeds, every task counting the same; the bands are a pointwise "
            "percentile bootstrap of seeds within tasks (Agarwal et al. 2021), with few seeds too narrow."
        )
        return finish(canvas, "profiles", "Performance profiles", caption, how)


def share_above(tasks: list[Floats], across: Floats) -> Floats:
    """Share of runs above each accuracy of `across`, mean over tasks."""
    return np.asarray(np.mean([(units[:, None] > across).mean(axis=0) for units in tasks], axis=0))


def profile(tasks: list[Floats], across: Floats) -> tuple[Floats, Floats, Floats]:
    """Share of runs above each accuracy of `across`, mean over tasks, with the ends of its bootstrap band.

    Args:
        tasks: accuracies by unit, an array per task.
        across: `[points]`.
    """
    rng = generator("profile")
    above = [(units[:, None] > across).astype(float) for units in tasks]
    shares = np.zeros((_DRAWS, len(across)))
    for runs in above:
        draws = rng.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=_DRAWS) / len(runs)
        shares += draws @ runs / len(tasks)
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    return share_above(tasks, across), low, high
