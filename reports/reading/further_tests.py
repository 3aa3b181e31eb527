"""Accuracies of the reported models on further tests (docs/scores.md), as tables and pictures show them."""

import pandas as pd

from bench.results.figures import ALL
from reports.reading.load import Store, remembered

TRIGGERED = "triggered"
"""The test whose figure is no accuracy of a model but the success of an attack."""
OWN = "own"
"""The clients' own tests, beside the further ones; of the generic model the common test set."""


@remembered
def further_tests(store: Store, chosen: str) -> pd.DataFrame:
    """Accuracies in percent by row, task, unit, metric (`gm`, `pm`) and test; empty where no cell has further tests.

    Corruptions of one severity are one test, their mean. Means over clients are weighted by training samples.

    Args:
        store: cells of one protocol.
        chosen: which round is reported without being asked for another: of that round models are kept, and with it the
            clients' own tests are of the same models. They are of the same seeds, too. A diverged cell is at chance
            level in all tests that any row has on its task.
    """
    table = store.table("evaluated")
    columns = ["row", "task", "unit", "metric", "test", "value"]
    rows = table[(table["quantity"] == "accuracy") & (table["client"] == ALL) & (table["split"] != "test")]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    weighted = (rows["mean"] == "train_size") & ((rows["metric"] == "pm") | (rows["split"] == "others"))
    rows = rows[weighted | ((rows["metric"] == "gm") & (rows["on"] == "global"))]
    units = {(cell.task, cell.seed): cell.unit for cell in store.cells}
    rows = rows.assign(
        test=rows["split"].str.replace(r"^corrupted \S+ (\d)$", r"corrupted \1", regex=True),
        unit=[units[place] for place in zip(rows["task"], rows["seed"], strict=True)],
        value=100 * rows["value"],
    )
    rows = pd.concat([rows, _guessing(store, rows)])
    means = rows.groupby(["row", "task", "unit", "seed", "metric", "test"], sort=False)["value"].mean()
    tested = set(means.reset_index()[["row", "task", "seed", "metric"]].itertuples(index=False, name=None))
    further = means.groupby(["row", "task", "unit", "metric", "test"], sort=False).mean().reset_index()
    by_seed = [
        (row, task, units[task, seed], metric, OWN, score)
        for row, task in dict.fromkeys(zip(further["row"], further["task"], strict=True))
        for metric, on, mean in (("pm", "local", "train_size"), ("gm", "global", ""))
        for seed, score in store.by_seed(row, task, metric, on, mean, chosen).items()
        if (row, task, seed, metric) in tested
    ]
    at_home = pd.DataFrame(by_seed, columns=columns).groupby(columns[:-1], sort=False)["value"].mean().reset_index()
    return pd.concat([at_home, further[columns]], ignore_index=True)


def _guessing(store: Store, tested: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells that diverged, at chance level."""
    tests = tested[["task", "metric", "test"]].drop_duplicates()
    columns = ["row", "task", "unit", "seed", "value"]
    diverged = [
        (cell.row, cell.task, cell.unit, cell.seed, store.chance(cell.task))
        for cell in store.cells
        if cell.state == "diverged"
    ]
    return pd.DataFrame(diverged, columns=columns).merge(tests, on="task")


def by_unit(tested: pd.DataFrame, row: str, task: str, metric: str, test: str) -> dict[str, float]:
    """Accuracies in percent of one row on one test, by unit."""
    chosen = (tested["row"] == row) & (tested["task"] == task) & (tested["metric"] == metric)
    part = tested[chosen & (tested["test"] == test)]
    return {str(unit): float(value) for unit, value in zip(part["unit"], part["value"], strict=True)}
