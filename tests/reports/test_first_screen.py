"""The first answers of a page, against what the tables say."""

import re

import numpy as np
import pytest
from scipy import stats

from reports.page.first_screen import answers
from reports.page.page import write_report
from reports.reading.load import PM, load
from tests.reports.conftest import write_cases


def test_each_question_has_one_sentence_in_this_order(store_writer, tmp_path):
    """The best is the row with the highest mean, and its gain is Student's interval over seeds."""
    store = load([store_writer(tmp_path)])
    who, sure, gains, cost_of, unsaid = answers(store, ())
    means = {row: np.mean([list(store.scores(row, task, PM).values()) for task in store.tasks]) for row in store.rows}
    leader = max(means, key=means.get)
    assert who.startswith("Best personalized models: `")
    assert f"`{leader}`" in who
    assert "shown to be" in sure
    scores = [[store.by_seed(row, task, PM) for task in store.tasks] for row in (leader, "fedavg")]
    by_seed = [[np.mean([task[str(seed)] for task in of_row]) for seed in range(3)] for of_row in scores]
    differences = np.subtract(*by_seed)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    gain = f"against FedAvg {differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    assert gains.startswith(f"`{leader}`, in points: {gain}")
    assert "(fine-tuning: not in the grid)" in gains
    said = r"In a round of `\w+` all clients together take \S+ MB; against FedAvg, as many megabytes."
    assert re.fullmatch(said, cost_of)
    assert unsaid.startswith("The run cannot say ")
    assert "what tuning would change" in unsaid


def test_one_seed_and_cells_that_are_not_done_are_said(store_writer, tmp_path):
    one = answers(load([store_writer(tmp_path / "one", seeds=1, states={("scd", 0.1, 0): "failed"})]), ())
    assert any("How sure that is cannot be said" in sentence for sentence in one)
    assert re.search(r"the luck of its one seed, .* the 1 of 10 cells that are not done would show or how", one[-1])
    assert "tuning" not in answers(load([tmp_path / "one"]), ["pm"])[-1]


def test_cases_are_answered_one_by_one(tmp_path):
    who, sure, gains, changes, *_, unsaid = answers(load(write_cases(tmp_path, seeds=3)), ())
    assert "`ditto` in all 3 cases" in who
    assert "in " in sure
    assert re.search(r'against FedAvg \+\S+ \[\S+ \S+\] in "plain", \+\S+ \[\S+ \S+\] in "attacked"', gains)
    assert changes.startswith('What cases change for `ditto`, in points: against "plain": "attacked" 0.00 [')
    assert unsaid.endswith("how the methods do on data other than digits.")


def test_a_run_in_which_no_method_has_a_figure_on_every_task_names_nobody_best(store_writer, tmp_path):
    states = {(method, alpha, 0): "failed" for method, alpha in (("scd", 0.1), ("ditto", 1.0))}
    store = load([store_writer(tmp_path / "one", seeds=1, methods=("scd", "ditto"), states=states)])
    assert answers(store, ()) == ("No method has a figure on every task, so that none can be called best.",)


@pytest.mark.long
def test_a_method_without_rivals_is_not_called_best(store_writer, tmp_path):
    run = store_writer(tmp_path, seeds=1, alphas=(1.0,), methods=("scd",))
    assert answers(load([run]), ())[0] == "There is one method, `scd`, and none to compare it with."
    assert "Performance profiles" not in write_report([run]).read_text()
