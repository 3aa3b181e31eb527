"""Statistics against scipy, closed forms and simulation."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from bench.rng import generator
from reports.statistics import inference as ours


def paired(x, y):
    """Comparison of two lists of scores that share their seeds."""
    return ours.paired({str(k): v for k, v in enumerate(x)}, {str(k): v for k, v in enumerate(y)})


def test_summary_is_scipys_t_interval():
    x = [0.71, 0.74, 0.69, 0.75, 0.72]
    summary = ours.summarise(x)
    interval = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (summary.n, summary.mean) == (5, pytest.approx(0.722))
    assert summary.std == pytest.approx(math.sqrt(0.00228 / 4))
    assert (summary.low, summary.high) == pytest.approx((interval.low, interval.high))
    one = ours.summarise([0.5])
    assert (one.n, one.mean) == (1, 0.5)
    assert np.isnan([one.std, one.low, ours.summarise([]).mean]).all()


def test_paired_comparison_is_scipys_paired_t_test():
    x, y = [0.9, 0.8, 0.85, 0.7], [0.85, 0.78, 0.79, 0.71]
    result = paired(x, y)
    reference = stats.ttest_rel(x, y)
    interval = reference.confidence_interval(0.95)
    assert result.p == pytest.approx(reference.pvalue)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))


def test_the_effect_interval_inverts_the_noncentral_t_distribution():
    d = np.array([0.01, 0.03, 0.02, 0.05, 0.01])
    result = paired(d, np.zeros(5))
    t = d.mean() / d.std(ddof=1) * math.sqrt(5)
    assert result.effect == pytest.approx(d.mean() / d.std(ddof=1))
    assert stats.nct.sf(t, 4, result.effect_low * math.sqrt(5)) == pytest.approx(0.025, abs=1e-4)
    assert stats.nct.cdf(t, 4, result.effect_high * math.sqrt(5)) == pytest.approx(0.025, abs=1e-4)


def test_rounding_is_no_spread():
    """One test sample of 447 more in each of three seeds: the differences in percent are equal but for rounding."""
    x, y = ([100 * k / 447 for k in right] for right in ((420, 425, 430), (419, 424, 429)))
    assert np.ptp(np.subtract(x, y)) > 0
    one_more = paired(x, y)
    assert one_more.difference == pytest.approx(100 / 447)
    assert [math.isnan(value) for value in (one_more.p, one_more.effect, one_more.effect_low)] == [True] * 3
    same = paired(x, [value * (1 + 1e-15) for value in x])
    assert (same.difference, same.p) == (0.0, 1.0)


def test_holm_by_hand():
    assert ours.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = ours.holm([0.02, math.nan, 0.01])
    assert (adjusted[0], adjusted[2]) == pytest.approx((0.02, 0.02))
    assert math.isnan(adjusted[1])


def test_rounding_breaks_no_tie():
    scores = np.array([[70.0, 90.0, 90.0 * (1 + 1e-15), 80.0], [70.0, 90.0, 90.001, 80.0]])
    assert len(set(scores[0])) == 4
    assert ours.ranks(scores).tolist() == [[4.0, 1.5, 1.5, 3.0], [4.0, 2.0, 1.0, 3.0]]


@pytest.mark.parametrize(("methods", "tasks"), [(5, 9), (10, 11), (20, 13), (28, 14)])
def test_fewest_tasks_at_which_a_pair_can_differ(methods, tasks):
    assert ours.tasks_needed(methods) == tasks
    smallest = stats.wilcoxon(np.arange(1, tasks + 1)).pvalue
    too_small = stats.wilcoxon(np.arange(1, tasks)).pvalue
    pairs = methods * (methods - 1) / 2
    assert smallest * pairs < 0.05 < too_small * pairs


def test_critical_difference_says_too_few_tasks():
    result = ours.critical_difference(["a", "b", "c"], np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    assert result.names == ("b", "c", "a")
    assert result.ranks == (1.5, 1.5, 3.0)
    assert result.too_few.startswith("too few tasks")
    assert result.cliques == ()


def test_critical_difference_joins_the_two_that_are_alike():
    rng = generator("tasks")
    base = rng.uniform(0.4, 0.6, size=12)
    alike = base + 0.01 * np.array([1, -1.1] * 6) * np.arange(1, 13)
    scores = np.column_stack([base - 0.2 - 0.01 * rng.uniform(size=12), base, alike])
    result = ours.critical_difference(["worse", "one", "other"], scores)
    assert result.too_few == ""
    assert result.friedman_p == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    assert result.names[-1] == "worse"
    assert result.cliques == ((0, 1),)


@pytest.mark.parametrize("whole", [False, True])
def test_pairs_are_tested_together_as_they_are_one_by_one(whole):
    """Whole numbers tie and differ by 0, which the exact test for all pairs at once does not have."""
    scores = generator("pairs").normal(80, 2, (14, 6)) + np.arange(6)
    scores = scores.round() if whole else scores
    rows, columns = np.triu_indices(6, 1)
    pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    p_values = ours.holm([stats.wilcoxon(scores[:, a], scores[:, b]).pvalue for a, b in pairs])
    expected = [list(pair) for pair, p in zip(pairs, p_values, strict=True) if p < 0.05]
    assert 0 < len(expected) < len(pairs)
    assert np.argwhere(np.triu(ours._different_pairs(scores, 0.05))).tolist() == expected


def test_probability_of_improvement_is_paired():
    """Three wins of three are 1, whatever seeds do to both; the bound is Clopper and Pearson's, 0.025 ** (1 / 3)."""
    y = np.array([60.0, 70.0, 80.0])
    won = ours.probability_of_improvement([y + 0.1], [y])
    assert (won.value, won.low, won.high) == pytest.approx((1.0, 0.025 ** (1 / 3), 1.0))
    lost = ours.probability_of_improvement([y], [y + 0.1])
    assert (lost.value, lost.low, lost.high) == pytest.approx((0.0, 0.0, 1 - 0.025 ** (1 / 3)))
    assert ours.probability_of_improvement([y, y + 1], [y, y]).value == pytest.approx(0.75)
    x, half = [np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0])], [np.full(3, 0.5)] * 2
    exact, found = stats.binomtest(4, 6).proportion_ci(0.95, method="exact"), ours.probability_of_improvement(x, half)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_a_task_with_few_units_is_not_drowned_in_the_probability_of_improvement():
    """Tasks count alike, and three units know no more for the thirty of another task."""
    rng = generator("few units")
    held = 0
    for _ in range(400):
        small, large = rng.random(3) < 0.5, rng.random(30) < 0.5
        found = ours.probability_of_improvement([small + 0.0, large + 0.0], [np.full(3, 0.5), np.full(30, 0.5)])
        held += found.low <= 0.5 <= found.high
    assert held / 400 >= 0.95


def test_bootstrap_enlarges_each_task_by_its_own_number_of_units():
    """Three noisy units and twenty quiet ones: the mean of the two means has Satterthwaite's interval."""
    rng = generator("enlarged")
    tasks = [50 + rng.normal(0, 1, 3), 50 + rng.normal(0, 0.1, 20)]
    parts = np.array([task.var(ddof=1) / len(task) / 4 for task in tasks])
    half = stats.t.ppf(0.975, ours.satterthwaite(parts, np.array([2.0, 19.0]))) * np.sqrt(parts.sum())
    found = ours.bootstrap(tasks, _mean_of_tasks, repeats=20_000)
    assert (found.low, found.high) == pytest.approx(ours.within_percent(found.value, half), abs=0.03 * half)


@pytest.mark.parametrize("seeds", [3, 5])
def test_bootstrap_repeats_itself_and_covers_the_aggregate(seeds):
    """A percentile interval of one task covers about 80 % at three seeds."""
    rng = generator("scores")
    hits = 0
    for draw in range(300):
        method = [rng.normal(55, 5, size=seeds)]
        estimate = ours.bootstrap(method, _mean_of_tasks, draw, repeats=300)
        hits += estimate.low <= 55 <= estimate.high
    assert 0.92 < hits / 300 < 0.98
    assert estimate == ours.bootstrap(method, _mean_of_tasks, 299, repeats=300)
    assert estimate != ours.bootstrap(method, _mean_of_tasks, 300, repeats=300)


def test_freedom_of_the_bootstrap_is_that_of_the_tasks_an_aggregate_rests_on():
    """Of tasks far apart the interquartile mean takes the middle two: 2 x (n - 1), not 4 x (n - 1)."""
    assert ours.iqm([np.array([0.0, 0.3]), np.array([1.0, 0.2])]) == pytest.approx(0.25)  # the mean of the middle half
    rng = np.random.default_rng(0)
    drawn = [rng.normal(level, 1, (4000, 5)) for level in (20, 40, 60, 80)]
    for aggregate, freedom in ((ours.iqm, 8), (_mean_of_tasks, 16)):
        parts = np.array([ours._part(units, aggregate(drawn)) for units in drawn])
        assert ours.satterthwaite(parts, np.full(4, 4.0)) == pytest.approx(freedom, rel=0.05)


@given(st.floats(0.5, 99.5), st.floats(0, 60))
@example(100 / 449, 0.0)
@example(100 / 449, 1e-15)
def test_intervals_of_percentages_stay_within_0_and_100_and_have_the_value_inside(value, half):
    low, high = ours.within_percent(value, half)
    assert 0 <= low <= value <= high <= 100
    if half == 0:
        assert low == high


def test_an_interval_of_unpaired_means_by_hand():
    """Variances of the means 1/3 and 4/5; t of 2 and 4 degrees of freedom are 4.302653 and 2.776445."""
    half = (4.302653 / 3 + 2.776445 * 4 / 5) / (1 / 3 + 4 / 5) * np.sqrt(1 / 3 + 4 / 5)
    assert ours.unpaired((5, 1, 3), (2, 2, 5)) == pytest.approx((3 - half, 3 + half))
    assert np.isnan([ours.unpaired((5, 1, 1), (2, 1, 3)), ours.unpaired((5, 0, 3), (2, 0, 3))]).all()


def _mean_of_tasks(tasks):
    return np.mean([runs.mean(axis=-1) for runs in tasks], axis=0)
