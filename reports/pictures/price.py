"""Price of personalisation: what personalized models do on other tests than their own."""

from typing import Any

import pandas as pd

from reports.pictures.canvas import Picture, drawing, finish, legend, point_styles
from reports.reading.further_tests import OWN, TRIGGERED, by_unit
from reports.reading.load import Store
from reports.statistics import inference


def price(store: Store, tested: pd.DataFrame) -> Picture | None:
    """Accuracy of personalized models on each further test against that on their own, a point per method; None where
    there is no further test of them.

    Args:
        store: cells of one protocol.
        tested: `reports.reading.further_tests.further_tests`.
    """
    personal = tested[tested["metric"] == "pm"]
    tests = [test for test in dict.fromkeys(personal["test"]) if test not in (OWN, TRIGGERED)]
    tasks = [task for task in store.tasks if (personal["task"] == task).any()]
    if not tests or not tasks:
        return None
    points = point_styles(store)
    drawn: dict[str, dict[str, Any]] = {}
    with drawing(tests, len(tasks), panel=(3.2, 2.6)) as (canvas, axes):
        for axis, (task, test) in zip(axes, [(task, test) for task in tasks for test in tests], strict=True):
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
    low, high = inference.within_percent(summary.mean, (summary.high - summary.low) / 2)
    return summary.mean, [[summary.mean - low], [high - summary.mean]]
