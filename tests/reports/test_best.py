"""Comparisons with the best: Smyth's and Hsu's formulas by hand, and how often the words are wrong."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from bench.rng import generator
from reports.reading.load import HEADLINE, PM, load
from reports.statistics import best
from reports.tables import standings
from tools.simulation import simulate


def test_two_methods_are_compared_by_the_paired_t_test_of_their_logits():
    x, y = np.array([91.0, 93.0, 92.5, 90.0]), np.array([90.2, 91.9, 92.0, 89.1])
    reference = stats.ttest_rel(special.logit(x / 100), special.logit(y / 100)).confidence_interval(0.95)
    one, other = best.against_best([np.array([x, y])])
    level = special.logit(y / 100).mean()
    high = 100 * (special.expit(level + reference.high) - special.expit(level))
    assert (one.low, one.high) == pytest.approx((0.0, high))
    assert (one.verdict, other.verdict) == ("better", "worse")


def test_the_seeds_for_a_point_do_not_depend_on_how_many_were_run():
    """Four times the units with the same variance: about as many are needed."""
    noise = generator("seeds needed").normal(0, 0.05, (2, 6, 400))
    few, many = ([100 * special.expit(1 + task[:, :units]) for task in noise] for units in (100, 400))
    needed = [best.against_best(tasks)[0].seeds for tasks in (few, many)]
    assert needed[0] == pytest.approx(needed[1], rel=0.2)


def test_a_prior_of_equal_variances_pools_them_and_of_unequal_ones_does_not():
    equal = np.full((6, 6), 4.0)
    variance, freedom = best.moderate(equal, 3)
    assert variance[0, 1] == pytest.approx(4.0)
    assert freedom == 15
    unequal = np.exp(np.add.outer(np.arange(6), np.arange(6)).astype(float))
    _, freedom = best.moderate(unequal, 3)
    assert 3 < freedom < 5


def test_the_prior_of_moderated_variances_is_found_again():
    """Smyth 2004: variances drawn from a scaled inverse chi-squared prior of 8 degrees of freedom around 2."""
    rng = generator("smyth")
    true = 2 * 8 / rng.chisquare(8, size=(70, 70))
    drawn = true * rng.chisquare(4, size=(70, 70)) / 4
    drawn = np.triu(drawn, 1) + np.triu(drawn, 1).T
    assert best.moderate(drawn, 4)[1] == pytest.approx(12, rel=0.2)


def test_an_erratic_method_leaves_the_others_as_they_are():
    """It diverged in one seed of four. The others' variances are those without it; its pairs' are their own."""
    rng = generator("erratic")
    scores = [rng.normal(2, 0.1, size=(8, 4)) for _ in range(3)]
    scores[2][5, 1] = -2.2
    weights, others = np.array([0.25, 0.25, 0.5]), np.arange(8) != 5
    whole = best.pairs_of(scores, weights, ~others)
    without = best.pairs_of([task[others] for task in scores], weights)
    both = np.ix_(others, others)
    np.testing.assert_allclose(whole.variance[both], without.variance)
    np.testing.assert_allclose(whole.freedom[both], without.freedom)
    apart = np.tensordot(weights**2, [(task[5] - task[others]).var(axis=1, ddof=1) / 4 for task in scores], 1)
    assert np.all(whole.variance[5, others] >= 0.999 * apart)  # times the design effect, which is at least 1
    assert set(whole.freedom[5, others]) == {3}
    assert best.pairs_of(scores, weights).freedom[0, 1] < 0.5 * without.freedom[0, 1]


def test_erratic_is_who_diverged_in_some_seeds_of_a_task(store_writer, tmp_path):
    """Who diverged in all of them guesses there, which is a figure like another."""
    states = {("ditto", 1.0, 1): "diverged", **{("scd", 0.1, seed): "diverged" for seed in range(3)}}
    store = load([store_writer(tmp_path, states=states)])
    group = standings.family(store, store.tasks, PM)
    assert group.erratic == {"ditto"}
    tasks = [np.array(rows) for rows in zip(*group.scores.values(), strict=True)]
    flags = [row == "ditto" for row in group.scores]
    expected = dict(zip(group.scores, best.against_best(tasks, best.MARGIN, flags), strict=True))
    assert group.standings(best.MARGIN) == expected
    assert expected != dict(zip(group.scores, best.against_best(tasks, best.MARGIN), strict=True))


def test_one_unit_or_one_method_says_nothing():
    assert best.against_best([np.ones((3, 1))]) == []
    assert best.against_best([np.ones((1, 3))]) == []


@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 100))
def test_intervals_hold_the_difference_and_only_one_can_be_better(methods, units, seed):
    rng = generator("mcb", seed)
    standings = best.against_best([rng.uniform(20, 99, size=(methods, units)) for _ in range(2)])
    for one in standings:
        assert one.low <= 1e-9
        assert one.high >= -1e-9
        assert min(one.low, 0) - 1e-9 <= one.difference <= max(one.high, 0) + 1e-9
    assert sum(one.verdict == "better" for one in standings) <= 1


@pytest.mark.long
@pytest.mark.parametrize(("methods", "seeds"), [(5, 3), (20, 3), (5, 10)])
def test_equal_methods_are_seldom_called_different_and_intervals_cover(methods, seeds):
    rates = simulate.with_the_best(methods, seeds, repeats=300)
    assert rates.false < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    assert rates.coverage > 0.95 - 3 * np.sqrt(0.05 * 0.95 / 300)


def test_the_margin_of_equivalence_is_the_readers(store_writer, tmp_path):
    """With fifty points every method is equivalent to the best; the captions say the margin."""
    store = load([store_writer(tmp_path, alphas=(1.0,), methods=("fedavg", "ditto", "scd"))])
    wide = replace(store, margin=50.0)
    tables = [standings.standings_table(one, HEADLINE) for one in (store, wide)]
    verdicts = [{entries[0].note for _, entries in table.rows} for table in tables]
    assert "worse" in verdicts[0]
    assert verdicts[1] <= {"better", "equivalent"}
    assert "at most 50 points below" in tables[1].caption
