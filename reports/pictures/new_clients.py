"""Clients that took no part in training: their accuracy after some epochs of their own (Figure 3 of the SCD paper)."""

import numpy as np
import pandas as pd

from bench.data import Floats
from reports.pictures.canvas import Picture, bar_styles, drawing, finish, legend
from reports.reading.load import PM, Store
from reports.tables.standings import derived_rows
from reports.tables.table import Column, Table, mean_entry

_PREFIX = "new"


def newcomers(store: Store) -> pd.DataFrame:
    """Test accuracy in percent: row, task, seed, epochs, accuracy; empty where a run held no clients out.

    A cell that diverged counts at chance level, as in all tables of accuracies.
    """
    metrics = store.table("metrics")
    chosen = metrics[
        metrics["metric"].str.fullmatch(_PREFIX + r"\d+")
        & (metrics["mean"] == "train_size")
        & (metrics["split"] == "test")
        & (metrics["quantity"] == "accuracy")
    ]
    epochs = chosen["metric"].str.removeprefix(_PREFIX).astype(int)
    accuracies = chosen.assign(epochs=epochs, accuracy=100 * chosen["value"])
    measured = accuracies[["row", "task", "seed", "epochs", "accuracy"]]
    guessing = store.guesses().merge(measured[["task", "epochs"]].drop_duplicates(), on="task")
    return pd.concat([measured, guessing[measured.columns]]) if len(guessing) else measured


def newcomer_table(store: Store, accuracies: pd.DataFrame) -> Table:
    """Mean and standard deviation over seeds, a column per number of epochs and task that has new clients."""
    epochs, tasks = sorted(accuracies["epochs"].unique()), _with_new(store, accuracies)
    columns = tuple(Column(_after(k), task) for task in tasks for k in epochs)
    derived = derived_rows(store, store.tasks, PM)
    rows = tuple(
        (
            row,
            tuple(mean_entry(_of(accuracies, row, task, k), derived=row in derived) for task in tasks for k in epochs),
        )
        for row in store.rows
    )
    caption = (
        "Test accuracy in percent of the clients held out of training, after some epochs of adapting as the method "
        "does; mean ± standard deviation over seeds. [ ]: what adapts is a generic model, as the method trains no "
        "personalized ones."
    )
    how = (
        "After the last round; means over clients are weighted by training size. A diverged cell counts as chance "
        "level."
    )
    return Table("newcomers", "New clients", caption, "Method", columns, rows, how=how)


def _with_new(store: Store, accuracies: pd.DataFrame) -> list[str]:
    return [task for task in store.tasks if (accuracies["task"] == task).any()]


def newcomer_bars(store: Store, accuracies: pd.DataFrame) -> Picture:
    """A panel per task that has new clients: for each number of epochs a group of bars, one per method."""
    bars = bar_styles(store)
    epochs = sorted(accuracies["epochs"].unique())
    width, tasks = 0.8 / len(store.rows), _with_new(store, accuracies)
    with drawing(tasks, 1) as (canvas, axes):
        for axis, task in zip(axes, tasks, strict=True):
            for k, row in enumerate(store.rows):
                values = [_of(accuracies, row, task, count) for count in epochs]
                means = np.array([seeds.mean() if len(seeds) else np.nan for seeds in values])
                spread = np.array([seeds.std(ddof=1) if len(seeds) > 1 else 0.0 for seeds in values])
                places = np.arange(len(epochs)) + (k - (len(store.rows) - 1) / 2) * width
                axis.bar(places, means, width, yerr=spread, error_kw={"linewidth": 0.8}, **bars[row])
            axis.set_xticks(range(len(epochs)), [_after(k) for k in epochs])
            axis.set(title=task, ylabel="accuracy (%)")
        legend(canvas, bars)
        caption = (
            "Accuracy of clients held out of training, by epochs of adapting; lines: standard deviation over seeds."
        )
        return finish(canvas, "newcomers", "New clients", caption)


def _of(accuracies: pd.DataFrame, row: str, task: str, epochs: int) -> Floats:
    rows = accuracies[(accuracies["row"] == row) & (accuracies["task"] == task) & (accuracies["epochs"] == epochs)]
    return rows["accuracy"].to_numpy(dtype=float)


def _after(epochs: int) -> str:
    return f"{epochs} epoch{'' if epochs == 1 else 's'}"
