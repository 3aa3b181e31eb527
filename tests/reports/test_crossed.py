"""Intervals of means over samples and seeds that are crossed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import Floats, Indices
from reports.statistics.crossed import CrossedMean, crossed_mean, more_samples, more_seeds


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
    for shape in ((0, 5), (40, 1)):  # no samples, or one seed
        assert math.isnan(crossed_mean(np.zeros(shape), level).low)


def draws(rng: np.random.Generator, samples: int, seeds: int, spread: float) -> Floats:
    """Differences: samples of unequal difficulty, on many of which seeds agree; effects of seeds with heavy tails."""
    better, worse = (rng.beta(0.3, 0.3 * (1 - p) / p, samples)[:, None] for p in (0.04, 0.02))
    shape = samples, seeds
    values = (rng.random(shape) < better).astype(float) - (rng.random(shape) < worse)
    effect = spread * rng.standard_t(3, seeds)
    return np.clip(np.where(rng.random(shape) < np.abs(effect), np.sign(effect), values), -1, 1) * 100


def missed(means: list[CrossedMean], truth: float) -> int:
    """How many intervals do not hold the truth."""
    return sum(not mean.low <= truth <= mean.high for mean in means)


def most(level: float, repeats: int) -> float:
    """How many of so many intervals may miss it, three standard deviations above their level."""
    return level * repeats + 3 * math.sqrt(level * repeats)


@pytest.mark.long
@pytest.mark.parametrize(("samples", "seeds", "spread"), [(12, 3, 0.0), (60, 5, 0.01), (400, 3, 0.03), (400, 10, 0.01)])
def test_it_covers_what_it_claims(samples: int, seeds: int, spread: float) -> None:
    """Over samples and seeds drawn anew, at 95 % and 99.9 %; a normal interval of the samples alone does not."""
    rng = np.random.default_rng(samples + seeds)
    truth = float(np.mean([draws(rng, 2000, 20, spread).mean() for _ in range(300)]))
    drawn = [draws(rng, samples, seeds, spread) for _ in range(1500)]
    for level in (0.05, 0.001):
        assert missed([crossed_mean(values, level) for values in drawn], truth) <= most(level, 1500)
    naive = [abs(values.mean() - truth) > 1.96 * values.std() / math.sqrt(values.size) for values in drawn]
    assert np.mean(naive) > 0.08


@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 5), st.floats(0.001, 0.2))
def test_rows_of_a_subject_that_are_alike_are_worth_one(subjects: int, rows: int, seeds: int, level: float) -> None:
    """However many copies of it there are, and in whatever order; without subjects the interval shrinks."""
    rng = np.random.default_rng(subjects)
    each = rng.choice([-100.0, 0.0, 100.0], (subjects, seeds))
    order = rng.permutation(subjects * rows)
    copies, of = np.repeat(each, rows, axis=0)[order], np.repeat(np.arange(subjects), rows)[order]
    single, many, apart = crossed_mean(each, level), crossed_mean(copies, level, of), crossed_mean(copies, level)
    assert (many.mean, many.low, many.high) == pytest.approx((single.mean, single.low, single.high), abs=1e-9)
    assert many.by_samples == pytest.approx(single.by_samples)
    assert many.samples == subjects * rows
    assert rows == 1 or apart.by_samples < single.by_samples
    assert crossed_mean(each, level, np.arange(subjects)) == single


def draws_of_subjects(rng: np.random.Generator, subjects: int, seeds: int, spread: float) -> tuple[Floats, Indices]:
    """Differences of rows that are mostly alike within a subject; a few subjects have most of the rows."""
    of = np.repeat(np.arange(subjects), np.minimum(30, 1 + rng.negative_binomial(1, 0.3, subjects)))
    better, worse = (rng.beta(0.3, 0.3 * (1 - p) / p, subjects)[of][:, None] for p in (0.06, 0.03))
    shape = len(of), seeds
    alike = rng.random((subjects, 1))[of] < 0.7
    chance, other = (np.where(alike, rng.random((subjects, seeds))[of], rng.random(shape)) for _ in range(2))
    values = (chance < better).astype(float) - (other < worse)
    effect = spread * rng.standard_t(3, seeds)
    return np.clip(np.where(rng.random(shape) < np.abs(effect), np.sign(effect), values), -1, 1) * 100, of


@pytest.mark.long
@pytest.mark.parametrize(("subjects", "seeds", "spread"), [(12, 3, 0.0), (40, 20, 0.0), (150, 20, 0.01)])
def test_it_covers_what_it_claims_of_subjects(subjects: int, seeds: int, spread: float) -> None:
    """Over subjects and seeds drawn anew; as if each row stood for itself, it misses far more often with many seeds."""
    rng = np.random.default_rng(subjects + seeds)
    large = [draws_of_subjects(rng, 2000, 20, spread)[0] for _ in range(200)]
    truth = sum(values.mean(axis=1).sum() for values in large) / sum(map(len, large))
    drawn = [draws_of_subjects(rng, subjects, seeds, spread) for _ in range(1500)]
    assert missed([crossed_mean(values, 0.05, of) for values, of in drawn], truth) <= 0.05 * 1500
    assert missed([crossed_mean(values, 0.001, of) for values, of in drawn], truth) <= most(0.001, 1500)
    assert seeds < 20 or missed([crossed_mean(values, 0.05) for values, _ in drawn], truth) > 0.1 * 1500


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
    samples, seeds = more_samples(mean, half, 6), more_seeds(mean, half, 1000)
    assert samples is not None
    assert samples > 400
    wider = crossed_mean(np.tile(values, (round(samples / 400), 1)), 0.05)
    assert (wider.high - wider.low) / 2 == pytest.approx(half, rel=0.25)
    assert seeds is None or seeds > 6
    assert more_samples(mean, math.sqrt(mean.by_seeds), 6) is None


def test_strata_of_equal_weight_are_what_counts() -> None:
    """A mean over sites is one of their means; a site of few rows makes the interval wide, however many others have."""
    rng = np.random.default_rng(0)
    site = np.repeat([0, 1], [2000, 8])
    values = 100.0 * rng.choice([-1, 0, 1], (len(site), 1), p=[0.1, 0.6, 0.3]) * np.ones((1, 4))
    weights = np.where(site == 0, 0.5 / 2000, 0.5 / 8)
    mean = crossed_mean(values, 0.05, weights=weights, strata=site)
    assert mean.mean == pytest.approx((values[site == 0].mean() + values[site == 1].mean()) / 2)
    alone = crossed_mean(values[site == 1], 0.05)
    assert mean.high - mean.low == pytest.approx((alone.high - alone.low) / 2, rel=0.05)
    assert mean.half(4 * mean.samples, 4) < 0.6 * mean.half(mean.samples, 4)
    uniform = crossed_mean(values, 0.05, weights=np.full(len(site), 1 / len(site)), strata=np.zeros_like(site))
    plain = crossed_mean(values, 0.05)
    assert (uniform.mean, uniform.low, uniform.high) == pytest.approx((plain.mean, plain.low, plain.high))


def draws_of_sites(rng: np.random.Generator, sizes: tuple[int, ...], seeds: int, skewed: bool) -> Floats:
    """Differences at sites of unequal gains: of right and wrong rows, or with heavy tails to one side as of losses."""
    site = np.repeat(np.arange(len(sizes)), sizes)
    shape = len(site), seeds
    if skewed:
        gains = (
            20 * rng.standard_t(3, (len(site), 1)) + (rng.exponential(60, (len(site), 1)) - 60) * (site % 2)[:, None]
        )
        return 10.0 * site[:, None] + gains + rng.normal(size=shape) + 2 * rng.standard_t(3, seeds)
    better = rng.beta(0.3, 0.3 * (1 - 0.02 - 0.05 * site) / (0.02 + 0.05 * site))[:, None]
    return 100.0 * ((rng.random(shape) < better).astype(float) - (rng.random(shape) < 0.05))


@pytest.mark.long
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("sizes", [(600, 10, 10, 10, 10, 10), (600, 600, 600, 4), (3,) * 6, (1, 1, 1, 100)])
def test_it_covers_what_it_claims_of_sites_that_count_alike(sizes: tuple[int, ...], skewed: bool) -> None:
    rng = np.random.default_rng(len(sizes))
    number = np.arange(len(sizes))
    truth = float((10.0 * number if skewed else 100 * (0.02 + 0.05 * number - 0.05)).mean())
    site = np.repeat(number, sizes)
    weights = np.repeat(1 / np.array(sizes) / len(sizes), sizes)
    drawn = [draws_of_sites(rng, sizes, 3, skewed) for _ in range(400)]
    means = [crossed_mean(values, 0.05, weights=weights, strata=site) for values in drawn]
    assert missed(means, truth) <= most(0.05, 400)
