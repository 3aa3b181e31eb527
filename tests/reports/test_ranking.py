"""Rank intervals: exact where the data speak, wide where they do not, and right as often as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from bench.rng import generator
from reports.statistics.best import logits, pair_variances
from reports.statistics.ranking import family_weights, pair_intervals, rank
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
