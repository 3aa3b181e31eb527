"""Interval of a mean over test samples and seeds that are crossed: the models of every seed score the same samples.

Seeds with the same tests are no independent repetitions: however many there are, an unlucky draw of tests stays.
So the variance of the mean has a part of samples and a part of seeds, and each is estimated from the means over the
other, which counts their interaction twice, if anything (Cameron, Gelbach and Miller 2011, "Robust inference with
multiway clustering", without the term that they subtract). The quantile is the mean of both parts' t quantiles,
weighted with the parts (Cochran and Cox 1957, "Experimental designs"): with three seeds of heavy tails, Satterthwaite's
degrees of freedom make an interval at a level of 0.1 % miss more than ten times as often as that.

Samples may have weights and strata: a mean over sites that count alike is one whose strata are the sites. The samples'
part is then the sum of the strata's own variances, with Satterthwaite's degrees of freedom; a stratum of few samples
and much weight makes the interval as wide as it should be. Strata with a single sample are taken together.

Of few samples on which hardly any model differs, the spread says nothing. Therefore z^2/2 samples are added, half of
them at either end of the scale, z being the normal quantile of the level: two samples at 95 %, which is what Bonett and
Price (2012, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data") add to
paired proportions. Strata share them (Price and Bonett 2004, "An improved confidence interval for a linear function of
binomial proportions", for equal ones), each as large a part as it has of the variance if all samples vary alike. Where
several samples are of one subject, subjects are what is drawn: the samples' part is the cluster-robust variance, of the
sums over subjects, and subjects of the mean size are added. What this covers is simulated in
`tests/reports/test_crossed.py`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from bench.data import Floats, Indices
from reports.statistics.inference import satterthwaite

_END = 100.0  # points: the largest difference of two percentages


@dataclass(frozen=True)
class CrossedMean:
    """Mean difference over samples and seeds, in percentage points.

    Attributes:
        mean, low, high: with its interval; nan where there are no samples, or fewer than two seeds.
        samples, seeds: how many.
        by_samples, by_seeds: the two parts of the mean's variance.
        freedom: degrees of freedom of the samples' part.
        level: probability that the interval misses.
    """

    mean: float
    low: float
    high: float
    samples: int
    seeds: int
    by_samples: float
    by_seeds: float
    freedom: float
    level: float

    def half(self, samples: float, seeds: int) -> float:
        """Half the interval that so many samples and seeds would have, about."""
        from scipy import special

        parts = np.array([self.by_samples * self.samples / samples, self.by_seeds * self.seeds / seeds])
        freedoms = np.array([max(1.0, self.freedom * samples / self.samples), seeds - 1.0])
        quantiles = special.stdtrit(freedoms, 1 - self.level / 2)
        return float(parts @ quantiles / math.sqrt(parts.sum()))


def crossed_mean(
    differences: Floats,
    level: float,
    subjects: Indices | None = None,
    *,
    weights: Floats | None = None,
    strata: Indices | None = None,
) -> CrossedMean:
    """Mean of differences with its `1 - level` interval.

    Args:
        differences: `[samples, seeds]` in points, -100 to 100; larger ones widen the scale.
        level: probability that the interval misses.
        subjects: `[samples]` the number of each sample's subject; None: each is of its own.
        weights: `[samples]` the share of each in the mean, with the sum 1; None: all alike.
        strata: `[samples]` the number of each sample's stratum; None: there is one.
    """
    samples, seeds = differences.shape
    share = np.full(samples, 1 / max(1, samples)) if weights is None else weights
    by_seed = differences.mean(axis=0) if weights is None and samples else share @ differences
    if not samples or seeds < 2:
        only = float(by_seed.mean()) if differences.size else math.nan
        return CrossedMean(only, math.nan, math.nan, samples, seeds, math.nan, math.nan, math.nan, level)
    centre, parts, freedoms = _of_strata(differences.mean(axis=1), share, level, subjects, strata)
    variance = float(parts.sum())
    mean = CrossedMean(
        float(by_seed.mean()), 0.0, 0.0, samples, seeds, variance, float(by_seed.var(ddof=1)) / seeds,
        satterthwaite(parts, freedoms), level,
    )  # fmt: skip
    half, end = mean.half(samples, seeds), max(_END, float(np.abs(differences).max()))
    return replace(mean, low=max(-end, centre - half), high=min(end, centre + half))


def _of_strata(
    by_sample: Floats, share: Floats, level: float, subjects: Indices | None, strata: Indices | None
) -> tuple[float, Floats, Floats]:
    """The middle of the interval, and of each stratum its part of the variance and that part's degrees of freedom."""
    from scipy import special

    _, first, unit = np.unique(
        np.arange(len(share)) if subjects is None else subjects, return_index=True, return_inverse=True
    )
    stratum = np.zeros(len(share), np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
    alone = np.bincount(stratum[first], minlength=stratum.max() + 1) < 2
    stratum = np.unique(np.where(alone[stratum], -1, stratum), return_inverse=True)[1]
    units = np.maximum(1, np.bincount(stratum[first], minlength=stratum.max() + 1))
    weight = np.bincount(stratum, share)
    alike = weight**2 / units
    added = float(special.ndtri(1 - level / 2)) ** 2 / 2 * alike / alike.sum()
    centres = np.bincount(stratum, share * by_sample) / weight * units / (units + added)
    sums = np.bincount(unit, share * (by_sample - centres[stratum]))
    squares = np.bincount(stratum[first], sums**2, minlength=len(units)) * units**3 / np.maximum(1, units - 1)
    end = max(_END, float(np.abs(by_sample).max()))
    parts = (squares + weight**2 * added * (end**2 + centres**2)) / (units + added) ** 2
    return float(weight @ centres), parts, np.maximum(1.0, units + added - 1)


def more_samples(mean: CrossedMean, half: float, seeds: int) -> int | None:
    """Samples at which half the interval would be about `half` points, with so many seeds; None: no number suffices."""
    from scipy import optimize

    def surplus(log: float) -> float:
        return mean.half(mean.samples * math.exp(log), seeds) - half

    far = 20.0
    if surplus(far) > 0:
        return None
    return math.ceil(mean.samples * math.exp(optimize.brentq(surplus, 0, far))) if surplus(0) > 0 else mean.samples


def more_seeds(mean: CrossedMean, half: float, most: int) -> int | None:
    """Seeds, more than there are, at which half the interval would be about `half` points, on as many samples.

    None: no number up to `most` suffices.
    """
    return next((n for n in range(mean.seeds + 1, most + 1) if mean.half(mean.samples, n) <= half), None)
