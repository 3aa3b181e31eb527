"""Ranks and comparisons with the best: formulas by hand, exact where the data speak, and right as often as they say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from scipy.special import expit

from bench.rng import generator
from reports.reading.load import HEADLINE, PM, load
from reports.statistics import best
from reports.statistics.best import logits, pair_variances
from reports.statistics.ranking import family_weights, pair_intervals, rank
from reports.tables import standings
from tools.simulation import simulate
from tools.simulation.noise import unequal_noise


def simulated(levels: np.ndarray, tasks: int, seeds: int, noise: float, draw: int) -> list[np.ndarray]:
    """Accuracies in percent `[methods, seeds]` of each task: a task's and a seed's own level, and noise, in logits."""
    rng = generator("tests", "ranking", draw)
    common = rng.normal(1.0, 0.7, (tasks, 1, 1)) + rng.normal(0, 0.4, (tasks, 1, seeds))
    scores = levels[None, :, None] + common + rng.normal(0, noise, (tasks, len(levels), seeds))
    return [100 * expit(task) for task in scores]


@pytest.mark.parametrize(
    ("levels", "noise", "places"),
    [
        ([0.0, 2.0, 1.0], 0.01, [(3, 3, 3), (1, 1, 1), (2, 2, 2)]),
        ([0.0] * 6, 0.3, [(1, 6, 1)] * 6),
        ([1.0, 1.0, -2.0], 0.1, [(1, 2, 1), (1, 2, 1), (3, 3, 2)]),
    ],
    ids=["far apart", "all equal", "a pair above a poor one"],
)
def test_ranks_and_tiers_are_exact_where_the_data_speak(
    levels: list[float], noise: float, places: list[object]
) -> None:
    found = rank(simulated(np.array(levels), 4, 3, noise, 1), ["a"] * 4)
    assert [(one.first, one.last, one.tier) for one in found] == places


def test_every_data_family_counts_the_same() -> None:
    assert family_weights(["a", "a", "a", "b"]).tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])
    high, low = [simulated(np.array(levels), 1, 3, 0.01, 3)[0] for levels in ([2.0, 0.0], [0.0, 1.0])]
    one_family = rank([low, low, low, high], ["a"] * 4)
    two = rank([low, low, low, high], ["a", "a", "a", "b"])
    assert [one.first for one in one_family] == [2, 1]
    assert [one.first for one in two] == [1, 2]


def test_the_interval_of_two_methods_is_satterthwaite_s_by_hand() -> None:
    """Two tasks of one family with three seeds, one of another with five: weights 1/4, 1/4 and 1/2."""
    differences = [np.array([0.1, 0.3, 0.5]), np.array([0.0, 0.2, -0.2]), np.array([1.0, 0.2, 0.6, 0.4, 0.3])]
    tasks = [100 * expit(np.array([0.5 + one, np.full(len(one), 0.5)])) for one in differences]
    parts = [0.25**2 * 0.04 / 3, 0.25**2 * 0.04 / 3, 0.5**2 * 0.1 / 5]  # sample variances 0.04, 0.04 and 0.1
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 2 + parts[2] ** 2 / 4)
    mean, half = pair_intervals(tasks, ["a", "a", "b"])
    assert mean[0] - mean[1] == pytest.approx(0.25 * 0.3 + 0.5 * 0.5)
    assert half[0, 1] == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(sum(parts)))


def test_a_task_under_four_names_says_no_more_than_once() -> None:
    """Its seeds are the same seeds, and their noise is common to all four."""
    [task] = (logits(task) for task in simulated(np.zeros(5), 1, 5, 0.3, 9))
    once, often = pair_variances([task], np.ones(1))[0], pair_variances([task] * 4, np.full(4, 0.25))[0]
    assert often == pytest.approx(once)


def test_noise_that_tasks_share_in_a_seed_tells_no_equal_methods_apart() -> None:
    """As independent tasks, some were told apart in 73 % of tables."""
    rng, apart = generator("shared"), 0
    for _ in range(200):
        drawn = rng.normal(0, 0.1, (12, 10, 5)) + rng.normal(0, 0.05, (10, 5))
        mean, half = pair_intervals(list(100 * expit(drawn)), ["a"] * 12)
        apart += bool((np.abs(mean[:, None] - mean[None]) > half).any())
    assert apart / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_a_task_with_one_seed_has_the_mean_variance_of_the_others() -> None:
    """Of three and five seeds: two and four degrees of freedom."""
    one, other, single = (logits(simulated(np.zeros(3), 1, seeds, 0.3, 7)[0]) for seeds in (3, 5, 1))
    weights = np.array([0.2, 0.3, 0.5])
    own = [pair_variances([task], np.ones(1))[0] * task.shape[1] for task in (one, other)]
    expected = 0.2**2 * own[0] / 3 + 0.3**2 * own[1] / 5 + 0.5**2 * (2 * own[0] + 4 * own[1]) / 6
    assert pair_variances([one, other, single], weights)[0] == pytest.approx(expected)


@pytest.mark.parametrize("noise", ["10 + 2, the two 3 times as noisy", "10 + 1, the one 3 times as noisy"])
def test_a_noisy_heavy_family_tells_no_equal_methods_apart(noise: str) -> None:
    """With one variance pooled over all tasks it was 51 % of tables."""
    apart, _ = unequal_noise(noise, "normal", 5, 5, 200)
    assert apart <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@given(st.permutations(range(5)), st.permutations(range(4)), st.permutations(range(3)), st.integers(0, 5))
def test_the_order_of_methods_tasks_and_seeds_does_not_matter(
    methods: list[int], tasks: list[int], seeds: list[int], draw: int
) -> None:
    scores, families = simulated(np.linspace(0, 1, 5), 4, 3, 0.2, draw), ["a", "a", "b", "c"]
    turned = [scores[task][methods][:, seeds] for task in tasks], [families[task] for task in tasks]
    (mean, half), (other, width) = pair_intervals(scores, families), pair_intervals(*turned)
    assert other == pytest.approx(mean[methods])
    assert width == pytest.approx(half[np.ix_(methods, methods)])
    places = rank(scores, families)
    for place, method in zip(rank(*turned), methods, strict=True):
        assert place.first <= place.last
        assert (place.first, place.last) == (places[method].first, places[method].last)


@pytest.mark.long
@pytest.mark.parametrize("methods", [4, 12])
def test_all_intervals_hold_the_true_ranks_as_often_as_they_say(methods: int) -> None:
    """Ties included: equal methods share the best of their places."""
    levels = np.repeat(np.linspace(0, 0.6, methods // 2), 2)
    true = 1 + (levels[None] > levels[:, None]).sum(axis=1)
    missed = 0
    for draw in range(300):
        found = rank(simulated(levels, 5, 3, 0.15, draw), ["a"] * 5)
        missed += any(not one.first <= place <= one.last for one, place in zip(found, true, strict=True))
    assert missed / 300 <= 0.08


def test_two_methods_are_compared_by_the_paired_t_test_of_their_logits():
    x, y = np.array([91.0, 93.0, 92.5, 90.0]), np.array([90.2, 91.9, 92.0, 89.1])
    reference = stats.ttest_rel(special.logit(x / 100), special.logit(y / 100)).confidence_interval(0.95)
    one, other = best.against_best([np.array([x, y])])
    level = special.logit(y / 100).mean()
    high = 100 * (special.expit(level + reference.high) - special.expit(level))
    assert (one.low, one.high) == pytest.approx((0.0, high))
    assert (one.verdict, other.verdict) == ("better", "worse")
    assert best.against_best([np.ones((3, 1))]) == best.against_best([np.ones((1, 3))]) == []  # one unit, one method


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


@pytest.mark.long
def test_erratic_is_who_diverged_in_some_seeds_of_a_task(store_writer, tmp_path):
    """Who diverged in all of them guesses there, which is a figure like another."""
    states = {("ditto", 1.0, 1): "diverged", **{("scd", 0.1, seed): "diverged" for seed in range(3)}}
    store = load([store_writer(tmp_path, states=states)])
    group = standings.family(store, store.tasks, PM)
    assert group.erratic == {"ditto"}
    tasks = [np.array(rows) for rows in zip(*group.scores.values(), strict=True)]
    flags = [row == "ditto" for row in group.scores]
    expected = dict(zip(group.scores, best.against_best(tasks, best.MARGIN, flags), strict=True))
    assert group.standings == expected
    assert expected != dict(zip(group.scores, best.against_best(tasks, best.MARGIN), strict=True))


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
