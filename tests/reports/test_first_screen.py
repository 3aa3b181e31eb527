"""The first answers of a page, against what the tables say."""

import re

import numpy as np
import pytest
from scipy import stats

from reports.page.first_screen import answers
from reports.page.page import write_report
from reports.reading.load import PM, load
from tests.reports.conftest import write_cases, write_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return load([write_store(tmp_path_factory.mktemp("whole"))])


def test_each_question_has_one_sentence_in_this_order(whole):
    who, sure, gains, cost_of, unsaid = answers(whole, ())
    assert who.startswith("Best personalized models: `")
    assert "shown to be" in sure
    assert "in points: against FedAvg" in gains
    assert "(fine-tuning: not in the grid)" in gains
    assert re.fullmatch(
        r"In a round of `\w+` all clients together take \S+ MB; against FedAvg, as many megabytes.", cost_of
    )
    assert unsaid.startswith("The run cannot say ")
    assert "what tuning would change" in unsaid


def test_the_best_is_the_row_with_the_highest_mean_and_its_gain_is_student_s_interval_over_seeds(whole):
    who, _, gains, *_ = answers(whole, ())
    means = {row: np.mean([list(whole.scores(row, task, PM).values()) for task in whole.tasks]) for row in whole.rows}
    leader = max(means, key=means.get)
    assert f"`{leader}`" in who
    scores = [[whole.by_seed(row, task, PM) for task in whole.tasks] for row in (leader, "fedavg")]
    by_seed = [[np.mean([task[str(seed)] for task in of_row]) for seed in range(3)] for of_row in scores]
    differences = np.subtract(*by_seed)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert gains.startswith(
        f"`{leader}`, in points: against FedAvg {differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    )


def test_one_seed_and_cells_that_are_not_done_are_said(store_writer, tmp_path):
    one = answers(load([store_writer(tmp_path / "one", seeds=1, states={("scd", 0.1, 0): "failed"})]), ())
    assert any("one seed shows no spread" in sentence for sentence in one)
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
