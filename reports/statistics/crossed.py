"""Interval of a mean over test samples and seeds that are crossed: the models of every seed classify the same samples.

Seeds with the same tests are no independent repetitions: however many there are, an unlucky draw of tests stays.
So the variance of the mean has a part of samples and a part of seeds, and each is estimated from the means over the
other, which counts their interaction twice, if anything (Cameron, Gelbach and Miller 2011, "Robust inference with
multiway clustering", without the term that they subtract). The quantile is the mean of both parts' t quantiles,
weighted with the parts (Cochran and Cox 1957, "Experimental designs"): with three seeds of heavy tails, Satterthwaite's
degrees of freedom make an interval at a level of 0.1 % miss more than ten times as often as that.

Of few samples on which hardly any model differs, the spread says nothing. Therefore z^2/2 samples are added, half of
them at either end of the scale, z being the normal quantile of the level: two samples at 95 %, which is what Bonett and
Price (2012, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data") add to
paired proportions. Where several samples are of one subject, subjects are what is drawn: the samples' part is the
cluster-robust variance, of the sums over subjects, and subjects of the mean size are added. What this covers is
simulated in `tests/reports/test_crossed.py`.
"""

import math
from dataclasses import dataclass

import numpy as np

from bench.data import Floats, Indices

_END = 100.0  # points: the largest difference of two percentages


@dataclass(frozen=True)
class CrossedMean:
    """Mean difference over samples and seeds, in percentage points.

    Attributes:
        mean, low, high: with its interval; nan where there are no samples, or fewer than two seeds.
        samples, seeds: how many.
        by_samples, by_seeds: the two parts of the mean's variance.
        quantile: of the interval.
    """

    mean: float
    low: float
    high: float
    samples: int
    seeds: int
    by_samples: float
    by_seeds: float
    quantile: float


def crossed_mean(differences: Floats, level: float, subjects: Indices | None = None) -> CrossedMean:
    """Mean of differences with its `1 - level` interval.

    Args:
        differences: `[samples, seeds]` in points, -100 to 100.
        level: probability that the interval misses.
        subjects: `[samples]` the number of each sample's subject; None: each is of its own.
    """
    from scipy import special

    samples, seeds = differences.shape
    if not samples or seeds < 2:
        mean = float(differences.mean()) if differences.size else math.nan
        return CrossedMean(mean, math.nan, math.nan, samples, seeds, math.nan, math.nan, math.nan)
    added = float(special.ndtri(1 - level / 2)) ** 2 / 2
    by_sample = differences.mean(axis=1)
    _, of_subject = np.unique(np.arange(samples) if subjects is None else subjects, return_inverse=True)
    sizes = np.bincount(of_subject)
    units, size = len(sizes), samples / len(sizes)
    centre = float(by_sample.sum()) / size / (units + added)
    sums = np.bincount(of_subject, by_sample - centre) / size
    squares = np.square(sums).sum() + added / 2 * ((_END - centre) ** 2 + (_END + centre) ** 2)
    parts = np.array([squares / (units + added) ** 2, differences.mean(axis=0).var(ddof=1) / seeds])
    quantiles = special.stdtrit(np.array([units + added - 1, seeds - 1.0]), 1 - level / 2)
    quantile = float(parts @ quantiles / parts.sum())
    half = quantile * math.sqrt(parts.sum())
    low, high = max(-_END, centre - half), min(_END, centre + half)
    by_samples, by_seeds = parts.tolist()
    return CrossedMean(float(by_sample.mean()), low, high, samples, seeds, by_samples, by_seeds, quantile)


def more_samples(mean: CrossedMean, half: float) -> int | None:
    """Samples at which half the interval would be about `half` points, with as many seeds; None: no number suffices."""
    left = (half / mean.quantile) ** 2 - mean.by_seeds
    return math.ceil(mean.samples * mean.by_samples / left) if left > 0 else None


def more_seeds(mean: CrossedMean, half: float) -> int | None:
    """Seeds at which half the interval would be about `half` points, on as many samples; None: no number suffices."""
    left = (half / mean.quantile) ** 2 - mean.by_samples
    return math.ceil(mean.seeds * mean.by_seeds / left) if left > 0 else None
