"""Accuracy against its costs: bytes and steps of a round."""

import itertools
from typing import Any

import numpy as np
import pandas as pd

from reports.pictures.canvas import Picture, drawing, finish, legend, point_styles
from reports.reading.load import HEADLINE, Store
from reports.tables.cost import totals
from reports.tables.standings import derived_rows

_COSTS = {
    "megabytes": "megabytes a round, all clients",
    "steps": "steps (batches) a round, all clients",
}


def tradeoff(store: Store) -> Picture | None:
    """Mean accuracy over tasks against mean cost, a point per method that trains the model; None without a point."""
    means = mean_costs(store)
    shown = [name for name in _COSTS if means[name].notna().any()]
    if not shown:
        return None
    points = point_styles(store)
    derived = {figure: derived_rows(store, store.tasks, figure) for figure in HEADLINE}
    drawn: dict[str, dict[str, Any]] = {}
    with drawing(shown, len(HEADLINE), panel=(4.2, 2.6)) as (canvas, axes):
        for axis, (figure, name) in zip(axes, itertools.product(HEADLINE, shown), strict=True):
            for row in store.rows:
                by_task = [list(store.scores(row, task, figure).values()) for task in store.tasks]
                cost = float(means[name].get(row, np.nan))
                if not all(by_task) or np.isnan(cost) or row in derived[figure]:
                    continue
                drawn[row] = points[row]
                axis.plot(cost, float(np.mean([np.mean(units) for units in by_task])), **points[row])
            axis.set(title="", xlabel=_COSTS[name], ylabel=f"{figure.name} accuracy (%)")
            axis.margins(0.08)
        if not drawn:
            return None
        legend(canvas, drawn)
        caption = (
            "Mean accuracy over tasks against what a round takes of all clients together: bytes, and steps. The upper "
            "left is best."
        )
        how = (
            "Methods that train this model and have a figure on every task; every task counts the same. Every receiver "
            "of a download counts its bytes; steps are batches trained on."
        )
        return finish(canvas, "tradeoff", "Accuracy against bytes and steps", caption, how)


def mean_costs(store: Store) -> pd.DataFrame:
    """Average each row's megabytes and steps of a round over seeds, then over tasks."""
    last = totals(store).groupby(["row", "task", "seed"]).agg(megabytes=("megabytes", "max"), rounds=("round", "max"))
    sent = (last["megabytes"] / last["rounds"]).groupby(["row", "task"]).mean().groupby("row").mean()
    work = store.table("work")
    steps = work.groupby(["row", "task", "seed"])["steps"].mean().groupby(["row", "task"]).mean().groupby("row").mean()
    return pd.DataFrame({"megabytes": sent.astype(float), "steps": steps.astype(float)})
