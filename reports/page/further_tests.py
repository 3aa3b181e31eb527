"""Accuracies of the reported models on further tests (docs/scores.md): a table, the pairs of methods whose order they
turn round, and the price of personalisation: what personalized models do on other tests than their own.
"""

import itertools
from typing import Any

import pandas as pd

from bench.results.figures import ALL
from reports.page.section import Section
from reports.pictures.canvas import Picture, drawing, finish, legend, point_styles
from reports.reading.load import GM, PM, Store, remembered
from reports.statistics import inference
from reports.tables.table import Column, Table, mean_entry

TRIGGERED = "triggered"
"""The test whose figure is no accuracy of a model but the success of an attack."""
OWN = "own"
"""The clients' own tests, beside the further ones; of the generic model the common test set."""


def further_section(store: Store) -> Section | None:
    """Section of the further tests; None where no cell has any."""
    tested = further_tests(store)
    if not len(tested):
        return None
    points = tuple(reversals(store, tested))
    of_pairs = "differences with 95 % intervals, not corrected for the number of pairs"
    text = f"Pairs of methods whose order a test turns round ({of_pairs}):" if points else ""
    pictures = tuple(picture for picture in (price(store, tested),) if picture is not None)
    return Section("further", "Further tests", text, (further_table(store, tested),), pictures, points=points)


@remembered
def further_tests(store: Store) -> pd.DataFrame:
    """Accuracies in percent by row, task, unit, metric (`gm`, `pm`) and test; empty where no cell has further tests.

    Corruptions of one severity are one test, their mean. Means over clients are weighted by training samples.
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
    tests = rows[["task", "metric", "test"]].drop_duplicates()
    rows = pd.concat([rows, store.guesses().rename(columns={"accuracy": "value"}).merge(tests, on="task")])
    means = rows.groupby(["row", "task", "unit", "seed", "metric", "test"], sort=False)["value"].mean()
    tested = set(means.reset_index()[["row", "task", "seed", "metric"]].itertuples(index=False, name=None))
    further = means.groupby(["row", "task", "unit", "metric", "test"], sort=False).mean().reset_index()
    by_seed = [
        (row, task, units[task, seed], figure.metric, OWN, score)
        for row, task in dict.fromkeys(zip(further["row"], further["task"], strict=True))
        for figure in (PM, GM)
        for seed, score in store.by_seed(row, task, figure, store.kept).items()
        if (row, task, seed, figure.metric) in tested
    ]
    at_home = pd.DataFrame(by_seed, columns=columns).groupby(columns[:-1], sort=False)["value"].mean().reset_index()
    return pd.concat([at_home, further[columns]], ignore_index=True)


def by_unit(tested: pd.DataFrame, row: str, task: str, metric: str, test: str) -> dict[str, float]:
    """Accuracies in percent of one row on one test, by unit."""
    chosen = (tested["row"] == row) & (tested["task"] == task) & (tested["metric"] == metric)
    part = tested[chosen & (tested["test"] == test)]
    return {str(unit): float(value) for unit, value in zip(part["unit"], part["value"], strict=True)}


_KINDS = {"pm": "PM", "gm": "GM"}


def further_table(store: Store, tested: pd.DataFrame) -> Table:
    """Methods x (task, model and test): mean and standard deviation over units."""
    columns = [
        (task, metric, test)
        for task in store.tasks
        for metric in _KINDS
        for test in dict.fromkeys(tested[(tested["task"] == task) & (tested["metric"] == metric)]["test"])
    ]
    rows = [
        (row, tuple(mean_entry(by_unit(tested, row, *column).values()) for column in columns))
        for row in store.rows
        if (tested["row"] == row).any()
    ]
    caption = (
        "Accuracy in percent of the models of the reported round on other tests than their own, mean ± standard "
        "deviation over seeds. PM: personalized models, mean over clients weighted by training size; GM: the generic "
        "model."
    )
    how = (
        "own: the clients' own tests (GM: the common test set); global: the common test set; others: the tests of all "
        "other clients; corrupted with a severity: own tests, mean over the corruptions; triggered: the benign "
        "clients' own tests of other classes than an attack's target, with its trigger, and how many of them are taken "
        "for the target. A diverged cell counts at chance level."
    )
    heads = tuple(Column(f"{_KINDS[metric]} {test}", task) for task, metric, test in columns)
    return Table("further_tests", "Further tests", caption, "Method", heads, tuple(rows), how=how)


def reversals(store: Store, tested: pd.DataFrame) -> list[str]:
    """Say which pairs of methods' personalized models change their order from their own tests to another test.

    Both differences, paired by unit, have 95 % intervals without 0; nothing is corrected for the number of pairs. Left
    out is `triggered`, where a method is better the less an attack succeeds.
    """
    texts = []
    for task in store.tasks:
        part = tested[(tested["task"] == task) & (tested["metric"] == "pm")]
        rows = [row for row in store.rows if (part["row"] == row).any()]
        least = store.least(task, "local")
        for test in (test for test in dict.fromkeys(part["test"]) if test not in (OWN, TRIGGERED)):
            for first, second in itertools.combinations(rows, 2):
                at_home, elsewhere = (
                    inference.paired(
                        by_unit(part, first, task, "pm", place), by_unit(part, second, task, "pm", place), least=least
                    )
                    for place in (OWN, test)
                )
                certain = at_home.low * at_home.high > 0 and elsewhere.low * elsewhere.high > 0
                if certain and at_home.difference * elsewhere.difference < 0:
                    at_tests, other = (
                        f"{x.difference:+.2f} [{x.low:+.2f}, {x.high:+.2f}]" for x in (at_home, elsewhere)
                    )
                    texts.append(f"{task}: {first} − {second}: {at_tests} on own tests, {other} on {test}")
    return texts


def price(store: Store, tested: pd.DataFrame) -> Picture | None:
    """Accuracy of personalized models on each further test against that on their own, a point per method; None where
    there is no further test of them.
    """
    personal = tested[tested["metric"] == "pm"]
    tests = [test for test in dict.fromkeys(personal["test"]) if test not in (OWN, TRIGGERED)]
    tasks = [task for task in store.tasks if (personal["task"] == task).any()]
    if not tests or not tasks:
        return None
    points = point_styles(store)
    drawn: dict[str, dict[str, Any]] = {}
    with drawing(tests, len(tasks), panel=(3.2, 2.6)) as (canvas, axes):
        for axis, (task, test) in zip(axes, itertools.product(tasks, tests), strict=True):
            for row in store.rows:
                values = [list(by_unit(personal, row, task, "pm", place).values()) for place in (OWN, test)]
                if not all(values):
                    continue
                (x, across), (y, up) = (_with_bar(units, store.least(task, "local")) for units in values)
                drawn[row] = points[row]
                axis.errorbar(x, y, xerr=across, yerr=up, elinewidth=0.8, **points[row])
            axis.axline((0, 0), (100, 100), color="#888888", linewidth=0.8, linestyle=":", zorder=0)
            name = test if len(tasks) == 1 else f"{test} ({task})"
            axis.set(title=name, xlabel="on own tests (%)", ylabel="on the test above (%)")
        legend(canvas, drawn)
        caption = (
            "Personalized models of the reported round: accuracy on another test against that on their own clients' "
            "tests, mean over seeds with Student's 95 % interval. On the dotted line both are the same; how far a "
            "point lies below it is the price of personalisation, or of the corruption."
        )
        return finish(canvas, "price_of_personalisation", "The price of personalisation", caption)


def _with_bar(values: list[float], least: float) -> tuple[float, list[list[float]] | None]:
    """The mean, and how far its interval reaches below and above; None for one value."""
    summary = inference.summarise(values, least=least)
    if summary.n < 2:
        return summary.mean, None
    low, high = summary.percent
    return summary.mean, [[summary.mean - low], [high - summary.mean]]
