"""Tables of accuracies against figures computed another way."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.results.results import tidy
from reports.reading.load import PM, PM_EQUAL, load
from reports.statistics import inference
from reports.tables import accuracy


def test_main_table_is_mean_and_standard_deviation_over_seeds(store, run):
    table, f = accuracy.main_table(store), tidy(run)
    for position, (alpha, metric, on, mean) in enumerate(
        [(1.0, "gm", "global", ""), (1.0, "pm", "local", "train_size"), (0.1, "gm", "global", "")]
    ):
        chosen = f[(f.label == "fedavg") & (f.alpha == alpha) & (f.metric == metric) & (f.on == on)]
        values = 100 * chosen[(chosen["mean"] == mean) & (chosen.selection == "validation")]["value"]
        entry = _row(table, "fedavg")[position]
        assert (entry.value, entry.spread) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert table.groups == [("digits, α=1", 2), ("digits, α=0.1", 2)]
    of_one = accuracy.main_table(store, tasks=["digits, α=0.1"])
    assert of_one.groups == table.groups[1:]
    assert _row(of_one, "scd") == _row(table, "scd")[2:]


def test_what_is_derived_or_not_done_is_shown(store):
    table = accuracy.main_table(store)
    assert [entry.derived for entry in _row(table, "fedavg")] == [False, True, False, True]
    assert [entry.derived for entry in _row(table, "local")] == [True, False, True, False]
    ranks = {label: entries[0].value for label, entries in accuracy.aggregate_table(store).rows}
    assert ranks == {"local": None, "fedavg": ranks["fedavg"], "ditto": 3 - ranks["fedavg"]}
    assert [entry.note for entry in _row(table, "fedper")[2:]] == ["3 failed", "3 failed"]
    assert _row(table, "ditto")[0].note == "(1 diverged)"
    assert _row(table, "scd")[2].note == "(n=2; 1 missing)"
    assert _row(table, "fedavg")[0].note == ""


def test_one_best_a_column_and_it_has_the_highest_mean_of_what_was_trained_everywhere(store):
    table = accuracy.main_table(store)
    for column in range(len(table.columns)):
        entries = [entries[column] for _, entries in table.rows if entries[column].value is not None]
        best = [entry for entry in entries if entry.mark == "best"]
        whole = [entry for entry in entries if not entry.derived and "missing" not in entry.note]
        assert [entry.value for entry in best] == [max(entry.value for entry in whole)]


def test_a_divergence_counts_as_chance_level_and_promotes_nobody(store_writer, tmp_path):
    """Ditto is best; diverged in two seeds of three it falls behind and does not keep the mean of its good seed."""
    whole = load([store_writer(tmp_path / "whole", alphas=(1.0,))])
    states = {("ditto", 1.0, seed): "diverged" for seed in (0, 1)}
    diverged = load([store_writer(tmp_path / "diverged", alphas=(1.0,), states=states)])
    left = whole.scores("ditto", "digits, α=1", PM)["2"]
    assert _row(accuracy.main_table(whole), "ditto")[1].mark == "best"
    table = accuracy.main_table(diverged)
    entry = _row(table, "ditto")[1]
    assert entry.value == pytest.approx((left + 10 + 10) / 3)
    assert entry.note == "(2 diverged)"
    assert entry.mark != "best"
    assert _row(table, "scd")[1].mark == "best"
    ranks = {label: entries[7].value for label, entries in accuracy.aggregate_table(diverged).rows}
    assert ranks["ditto"] == max(rank for rank in ranks.values() if rank is not None)


@pytest.mark.parametrize("state", ["failed", "missing"])
def test_a_method_without_all_its_cells_is_neither_ranked_nor_tested(store_writer, tmp_path, state):
    store = load([store_writer(tmp_path, alphas=(1.0,), states={("scd", 1.0, 0): state})])
    assert _row(accuracy.main_table(store), "scd")[1].mark == ""
    assert "scd" not in [label for label, _ in accuracy.aggregate_table(store).rows]
    assert "scd" not in accuracy.ranking(store, PM).names
    compared = dict(accuracy.comparison_table(store).rows)
    assert compared["scd"][6].note == "–"


def test_seeds_of_one_partition_are_one_unit(store_writer, tmp_path):
    store = load([store_writer(tmp_path / str(k), alphas=(1.0,), partition_seed=k, prefix=str(k)) for k in range(3)])
    seeds, units = (of("scd", "digits, α=1", PM) for of in (store.by_seed, store.scores))
    assert (len(seeds), sorted(units)) == (9, ["0", "1", "2"])
    assert units["1"] == pytest.approx(np.mean([seeds[f"{seed}/1"] for seed in range(3)]))
    table = accuracy.main_table(store)
    assert "3 partitions, each the mean of up to 3 seeds" in table.caption
    assert _row(table, "scd")[1].spread == pytest.approx(np.std(list(units.values()), ddof=1))
    differences = accuracy.comparison_table(store)
    assert {entries[2].value for _, entries in differences.rows} == {3}


@pytest.mark.long
def test_a_task_without_validation_data_beside_one_that_has_some(store_writer, tmp_path):
    """Its last round stands there; it blanks neither itself nor the aggregates."""
    store = load([store_writer(tmp_path, alphas=(1.0, 0.1))])
    figures = store.figures
    without = (figures["task"] == "digits, α=0.1") & (figures["selection"] == "validation")
    mixed = replace(store, figures=figures[~without])
    table = accuracy.main_table(mixed)
    assert "the last round on digits, α=0.1: no validation data" in table.how
    assert "no validation data" not in accuracy.main_table(mixed, tasks=["digits, α=1"]).how
    last = mixed.scores("scd", "digits, α=0.1", PM, "last")
    assert _row(table, "scd")[3].value == pytest.approx(np.mean(list(last.values())))
    assert len(accuracy.aggregate_table(mixed).rows) == 5


def test_equal_methods_are_both_best(store_writer, tmp_path):
    store = load([store_writer(tmp_path, alphas=(1.0,))])
    ditto = store.figures[store.figures["row"] == "ditto"]
    twins = replace(store, figures=pd.concat([ditto, ditto.assign(row="scd")]))
    table = accuracy.main_table(twins)
    assert [_row(table, name)[1].mark for name in ("ditto", "scd")] == ["best", "best"]
    assert _row(table, "scd")[1].note == "(= ditto)"


def test_the_caption_and_the_protocol_say_which_round_is_reported(store, store_writer, tmp_path):
    paper = load([store_writer(tmp_path / "paper", seeds=1, methods=("local",), protocol="paper")])
    unvalidated = replace(store, figures=store.figures[store.figures["selection"] == "last"])
    chosen = [one.chosen for one in (store, paper, unvalidated, replace(store, choice="tail"))]
    assert chosen == ["validation", "best", "last", "tail"]
    table, equal = accuracy.main_table(store), accuracy.main_table(replace(store, choice="last"), (PM_EQUAL,))
    for words in ("over 3 seeds", "weighted by training size", "Protocol: honest", "chosen on validation data"):
        assert words in f"{table.caption} {table.how}"
    assert "every client counting the same" in equal.caption
    assert "the last round" in equal.how


def test_comparisons_are_paired_by_seed(store):
    table = accuracy.comparison_table(store)
    label, entries = next(row for row in table.rows if row[0] == "scd" and row[1][1].note == "PM")
    task = "digits, α=1"
    scores = {row: store.scores(row, task, PM) for row in ("scd", "fedavg")}
    expected = inference.paired(scores["scd"], scores["fedavg"])
    assert (label, entries[0].note) == ("scd", task)
    assert [entry.value for entry in entries[3:6]] == [expected.difference, expected.low, expected.high]
    assert "fedavg" not in [label for label, _ in table.rows]


def _row(table, label):
    return next(entries for name, entries in table.rows if name == label)


def test_only_what_was_tuned_for_is_marked(store):
    """A column that nobody tuned for has no winner: the other figure's settings decide it."""
    free, tuned = (accuracy.main_table(store, tuned=metrics) for metrics in ((), ("pm",)))
    for k, column in enumerate(free.columns):
        marks, kept = ([entries[k].mark for _, entries in table.rows] for table in (free, tuned))
        assert "best" in marks
        assert kept == (marks if column.name == "PM" else [""] * len(kept))
    assert "Tuned for PM: only these are marked." in tuned.notes
    assert not any("Tuned" in note for note in free.notes)
