"""Intervals of means over samples and seeds that are crossed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Floats
from reports.statistics.crossed import crossed_mean, more_samples, more_seeds


def test_of_many_equal_seeds_it_is_that_of_the_samples() -> None:
    """Seeds that agree add nothing: however many there are, the interval is that of a sample of the tests."""
    by_sample = np.repeat([100.0, 0.0, -100.0], [300, 500, 200])
    few, many = (crossed_mean(np.tile(by_sample[:, None], seeds), 0.05) for seeds in (2, 50))
    assert few == many.__class__(**{**vars(many), "seeds": 2})
    half = 1.96 * by_sample.std() / math.sqrt(len(by_sample))
    assert (many.high - many.low) / 2 == pytest.approx(half, rel=0.02)
    assert many.mean == pytest.approx(10)


def test_what_differs_from_seed_to_seed_only_rests_on_the_seeds() -> None:
    """Student's interval of three seeds' means, widened by the samples that are added alone."""
    by_seed = np.array([-2.0, 1.0, 4.0])
    mean = crossed_mean(np.tile(by_seed, (100_000, 1)), 0.05)
    half = 4.3027 * by_seed.std(ddof=1) / math.sqrt(3)
    assert (mean.high - mean.low) / 2 == pytest.approx(half, rel=0.01)


@pytest.mark.parametrize("level", [0.05, 0.001])
def test_samples_on_which_nothing_differs_prove_little(level: float) -> None:
    """Ten equal results are no proof: about up to the rate that with this probability shows none in ten is possible."""
    mean = crossed_mean(np.zeros((10, 5)), level)
    unseen = 100 * (1 - level ** (1 / 10))
    assert mean.high == -mean.low >= 0.98 * unseen


def test_without_samples_or_with_one_seed_there_is_no_interval() -> None:
    for shape in ((0, 5), (40, 1)):
        assert math.isnan(crossed_mean(np.zeros(shape), 0.05).low)


def draws(rng: np.random.Generator, samples: int, seeds: int, spread: float) -> Floats:
    """Differences: samples of unequal difficulty, on many of which seeds agree; effects of seeds with heavy tails."""
    better, worse = (rng.beta(0.3, 0.3 * (1 - p) / p, samples)[:, None] for p in (0.04, 0.02))
    shape = samples, seeds
    values = (rng.random(shape) < better).astype(float) - (rng.random(shape) < worse)
    effect = spread * rng.standard_t(3, seeds)
    return np.clip(np.where(rng.random(shape) < np.abs(effect), np.sign(effect), values), -1, 1) * 100


@pytest.mark.long
@pytest.mark.parametrize(("samples", "seeds", "spread"), [(12, 3, 0.0), (60, 5, 0.01), (400, 3, 0.03), (400, 10, 0.01)])
def test_it_covers_what_it_claims(samples: int, seeds: int, spread: float) -> None:
    """Over samples and seeds drawn anew, at 95 % and 99.9 %; a normal interval of the samples alone does not."""
    rng = np.random.default_rng(samples + seeds)
    truth = float(np.mean([draws(rng, 2000, 20, spread).mean() for _ in range(300)]))
    repeats = 1500
    misses = {0.05: 0, 0.001: 0}
    naive = 0
    for _ in range(repeats):
        values = draws(rng, samples, seeds, spread)
        for level in misses:
            mean = crossed_mean(values, level)
            misses[level] += not mean.low <= truth <= mean.high
        half = 1.96 * values.std() / math.sqrt(values.size)
        naive += abs(values.mean() - truth) > half
    assert misses[0.05] <= 0.05 * repeats + 3 * math.sqrt(0.05 * repeats)
    assert misses[0.001] <= 0.001 * repeats + 3 * math.sqrt(0.001 * repeats)
    assert naive > 0.08 * repeats


@given(st.integers(2, 6), st.integers(1, 30), st.floats(0.001, 0.2))
def test_turned_round_it_is_the_negative(seeds: int, samples: int, level: float) -> None:
    values = np.random.default_rng(samples).choice([-100.0, 0.0, 100.0], (samples, seeds))
    mean, turned = crossed_mean(values, level), crossed_mean(-values, level)
    assert (turned.low, turned.high) == pytest.approx((-mean.high, -mean.low), abs=1e-9)
    assert -100 <= mean.low <= mean.high <= 100


def test_the_advice_decides() -> None:
    """With about as many samples or seeds as advised, half the interval is as wanted."""
    rng = np.random.default_rng(0)
    values = 100.0 * rng.choice([-1, 0, 1], (400, 1), p=[0.05, 0.85, 0.1]) + rng.normal(0, 2, (1, 6))
    values = np.clip(values, -100, 100)
    mean = crossed_mean(values, 0.05)
    half = 0.7 * (mean.high - mean.low) / 2
    samples, seeds = more_samples(mean, half), more_seeds(mean, half)
    assert samples is not None
    assert samples > 400
    wider = crossed_mean(np.tile(values, (round(samples / 400), 1)), 0.05)
    assert (wider.high - wider.low) / 2 == pytest.approx(half, rel=0.25)
    assert seeds is None or seeds > 6
    assert more_samples(mean, math.sqrt(mean.by_seeds)) is None
