"""Table of accuracies on further tests, and the pairs of methods whose order they turn round."""

import itertools
import math

import pandas as pd

from reports.reading.further_tests import OWN, TRIGGERED, by_unit
from reports.reading.load import Store
from reports.statistics import inference
from reports.tables.table import Column, Table, TableEntry, words

_KINDS = {"pm": "PM", "gm": "GM"}


def further_table(store: Store, tested: pd.DataFrame) -> Table:
    """Methods x (task, model and test): mean and standard deviation over units.

    Args:
        store: cells of one protocol.
        tested: `reports.reading.further_tests.further_tests`.
    """
    columns = [
        (task, metric, test)
        for task in store.tasks
        for metric in _KINDS
        for test in dict.fromkeys(tested[(tested["task"] == task) & (tested["metric"] == metric)]["test"])
    ]
    rows = [
        (row, tuple(_entry(by_unit(tested, row, *column)) for column in columns))
        for row in store.rows
        if (tested["row"] == row).any()
    ]
    caption = (
        "Accuracy in percent of the models of the reported round, mean ± standard deviation (ddof 1) over seeds. PM: "
        "personalized models, mean over clients weighted by training size; GM: the generic model. own: the clients' "
        "own tests (GM: the common test set); global: the common test set; others: the tests of all other clients; "
        "corrupted with a severity: own tests, mean over the corruptions; triggered: the benign clients' own tests of "
        "other classes than an attack's target, with its trigger, and how many of them are taken for the target. A "
        "diverged cell counts at chance level."
    )
    heads = tuple(Column(f"{_KINDS[metric]} {test}", task) for task, metric, test in columns)
    return Table("further_tests", "Further tests", caption, "Method", heads, tuple(rows))


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
                    texts.append(
                        f"{task}: {first} − {second}: {_text(at_home)} on own tests, {_text(elsewhere)} on {test}"
                    )
    return texts


def _text(difference: inference.Comparison) -> str:
    return f"{difference.difference:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _entry(units: dict[str, float]) -> TableEntry:
    if not units:
        return words("–")
    summary = inference.summarise(list(units.values()))
    return TableEntry(summary.mean, None if math.isnan(summary.std) else summary.std)
