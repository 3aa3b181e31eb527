"""Tables of accuracies against figures computed another way."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.runs.results import tidy
from reports import accuracy, statistics
from reports.load import load


@pytest.fixture(scope="module")
def figures(run):
    return tidy(run)


def test_main_table_is_mean_and_standard_deviation_over_seeds(store, figures):
    table = accuracy.main_table(store, "validation")
    for position, (alpha, metric, on, mean) in enumerate(
        [(1.0, "gm", "global", ""), (1.0, "pm", "local", "train_size"), (0.1, "gm", "global", "")]
    ):
        f = figures
        chosen = f[(f.label == "fedavg") & (f.alpha == alpha) & (f.metric == metric) & (f.on == on)]
        values = 100 * chosen[(chosen["mean"] == mean) & (chosen.selection == "validation")]["value"]
        entry = _row(table, "fedavg")[position]
        assert (entry.value, entry.spread) == pytest.approx((np.mean(values), np.std(values, ddof=1)))


def test_columns_are_tasks_and_rows_are_labels(store):
    table = accuracy.main_table(store, "validation")
    assert table.groups == [("digits, α=1", 2), ("digits, α=0.1", 2)]
    assert [label for label, _ in table.rows] == ["fedavg", "local", "fedper", "ditto", "scd"]


def test_what_is_not_done_is_shown(store):
    table = accuracy.main_table(store, "validation")
    assert [entry.note for entry in _row(table, "fedper")[2:]] == ["3 failed", "3 failed"]
    assert _row(table, "ditto")[0].note == "(n=2; 1 diverged)"
    assert _row(table, "scd")[2].note == "(n=2; 1 missing)"
    assert _row(table, "fedavg")[0].note == ""


def test_derived_figures_are_bracketed(store):
    table = accuracy.main_table(store, "validation")
    assert [entry.derived for entry in _row(table, "fedavg")] == [False, True, False, True]
    assert [entry.derived for entry in _row(table, "local")] == [True, False, True, False]


def test_one_best_a_column_and_it_has_the_highest_mean(store):
    table = accuracy.main_table(store, "validation")
    for column in range(len(table.columns)):
        entries = [entries[column] for _, entries in table.rows if entries[column].value is not None]
        best = [entry for entry in entries if entry.mark == "best"]
        assert [entry.value for entry in best] == [max(entry.value for entry in entries)]


def test_equal_methods_are_both_best(store):
    ditto = store.figures[store.figures["row"] == "ditto"]
    twins = replace(store, figures=pd.concat([ditto, ditto.assign(row="scd")]))
    table = accuracy.main_table(twins, "validation")
    assert [_row(table, name)[3].mark for name in ("ditto", "scd")] == ["best", "best"]


def test_caption_says_which_figure_it_is(store):
    caption = accuracy.main_table(store, "validation").caption
    for words in ("over 3 seeds", "weighted by training size", "Protocol: honest", "chosen on validation data"):
        assert words in caption
    equal = accuracy.main_table(store, "last", (accuracy.PM_EQUAL,)).caption
    assert "every client counting the same" in equal
    assert "the last round" in equal


def test_comparisons_are_paired_by_seed(store):
    table = accuracy.comparison_table(store, "validation")
    label, entries = next(row for row in table.rows if row[0] == "scd" and row[1][1].note == "PM")
    task = "digits, α=1"
    scores = {row: store.scores(row, task, "pm", "local", "train_size", "validation") for row in ("scd", "fedavg")}
    expected = statistics.paired(scores["scd"], scores["fedavg"])
    assert (label, entries[0].note) == ("scd", task)
    assert [entry.value for entry in entries[3:6]] == [expected.difference, expected.low, expected.high]
    assert "fedavg" not in [label for label, _ in table.rows]


def test_aggregates_leave_out_methods_with_gaps(store):
    table = accuracy.aggregate_table(store, "validation")
    assert [label for label, _ in table.rows] == ["fedavg", "local", "ditto", "scd"]
    ranks = {label: entries[0].value for label, entries in table.rows}
    assert ranks["local"] == 4.0
    assert sum(ranks.values()) == 1 + 2 + 3 + 4


def test_the_protocol_says_which_round_is_reported(store, store_writer, tmp_path):
    paper = load([store_writer(tmp_path / "paper", seeds=1, methods=("local",), protocol="paper")])
    assert (accuracy.selection(store), accuracy.selection(paper)) == ("validation", "best")
    unvalidated = replace(store, figures=store.figures[store.figures["selection"] == "last"])
    assert accuracy.selection(unvalidated) == "last"


def _row(table, label):
    return next(entries for name, entries in table.rows if name == label)
