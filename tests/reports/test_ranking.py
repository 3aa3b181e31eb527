"""Rank intervals: exact where the data speak, wide where they do not, and right as often as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from bench.rng import generator
from reports.ranking import family_weights, rank


def simulated(levels: np.ndarray, tasks: int, seeds: int, noise: float, draw: int) -> list[np.ndarray]:
    """Accuracies in percent `[methods, seeds]` of each task: a task's and a seed's own level, and noise, in logits."""
    rng = generator("tests", "ranking", draw)
    common = rng.normal(1.0, 0.7, (tasks, 1, 1)) + rng.normal(0, 0.4, (tasks, 1, seeds))
    scores = levels[None, :, None] + common + rng.normal(0, noise, (tasks, len(levels), seeds))
    return [100 * expit(task) for task in scores]


def test_far_apart_methods_have_exact_ranks_and_tiers_of_their_own() -> None:
    found = rank(simulated(np.array([0.0, 2.0, 1.0]), 4, 3, 0.01, 0), ["a"] * 4)
    assert [(one.first, one.last, one.tier) for one in found] == [(3, 3, 3), (1, 1, 1), (2, 2, 2)]


def test_equal_methods_are_one_tier() -> None:
    found = rank(simulated(np.zeros(6), 4, 3, 0.3, 1), ["a"] * 4)
    assert {(one.first, one.last, one.tier) for one in found} == {(1, 6, 1)}


def test_a_noisy_pair_shares_a_tier_above_a_poor_method() -> None:
    found = rank(simulated(np.array([1.0, 1.0, -2.0]), 5, 3, 0.1, 2), ["a"] * 5)
    assert [(one.first, one.last, one.tier) for one in found] == [(1, 2, 1), (1, 2, 1), (3, 3, 2)]


def test_every_data_family_counts_the_same() -> None:
    assert family_weights(["a", "a", "a", "b"]).tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])
    high, low = [simulated(np.array(levels), 1, 3, 0.01, 3)[0] for levels in ([2.0, 0.0], [0.0, 1.0])]
    one_family = rank([low, low, low, high], ["a"] * 4)
    two = rank([low, low, low, high], ["a", "a", "a", "b"])
    assert [one.first for one in one_family] == [2, 1]
    assert [one.first for one in two] == [1, 2]


@given(st.permutations(range(5)), st.integers(0, 5))
def test_the_order_of_methods_does_not_matter(order: list[int], draw: int) -> None:
    tasks = simulated(np.linspace(0, 1, 5), 3, 3, 0.2, draw)
    straight = rank(tasks, ["a", "a", "b"])
    turned = rank([task[order] for task in tasks], ["a", "a", "b"])
    for place, method in enumerate(order):
        assert (turned[place].first, turned[place].last) == (straight[method].first, straight[method].last)
        assert turned[place].first <= turned[place].last


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
