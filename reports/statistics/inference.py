"""Statistics for few seeds and few tasks; numpy and scipy only.

What is used where, and why (percentile bootstrap of three seeds covers 71 %, a t interval 95 %):
one cell of a table: Student's t interval; two methods: paired differences per seed, Holm over the comparisons;
all methods at once: reports/statistics/best.py; aggregates over tasks: stratified bootstrap (Agarwal et al. 2021,
"Deep RL at the Edge of the Statistical Precipice") with Student's t in place of percentiles;
many methods over many tasks: Friedman test, then Wilcoxon signed-rank with Holm (Benavoli, Corani and Mangili 2016).
A task is a data set with its partition; a run is one seed of it.

No interval, p value or effect size takes a spread for smaller than half a test sample (`least_deviation`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from bench.data import Floats
from bench.rng import generator

LEVEL = 0.05
"""Probability that an interval misses, or that a test is wrong where nothing differs."""
_ROUNDING = 1e-9
"""Share of a score: what differs by less is equal but for rounding."""


@dataclass(frozen=True)
class Summary:
    """Mean of `n` runs, standard deviation with ddof 1, and Student's t interval; nan where `n` is too small."""

    n: int
    mean: float
    std: float
    low: float
    high: float

    @property
    def percent(self) -> tuple[float, float]:
        """The interval's ends where the runs are percentages, which it then stays within (`within_percent`)."""
        return within_percent(self.mean, (self.high - self.low) / 2)


@dataclass(frozen=True)
class Comparison:
    """Paired differences of a method from a reference.

    Attributes:
        n: pairs.
        difference, low, high: mean difference and its t interval.
        p: two-sided p value of the paired t test; 1 where all pairs are equal, nan for fewer than two pairs and where
            all differ by the same amount and no least spread is known: t is infinite there.
        effect, effect_low, effect_high: mean difference over the standard deviation of differences (Cohen's d_z) and
            its interval from the noncentral t distribution (Cumming and Finch 2001); nan where there is no spread.
    """

    n: int
    difference: float
    low: float
    high: float
    p: float
    effect: float
    effect_low: float
    effect_high: float


@dataclass(frozen=True)
class CriticalDifference:
    """Average ranks over tasks (1 is best) and what the tests say of them.

    Attributes:
        names, ranks: the methods, best average rank first.
        tasks: number of tasks.
        friedman_p: p value of the Friedman test.
        cliques: `(first, last)` positions in `names` of groups in which no pair differs significantly.
        too_few: why no diagram can be drawn; empty where one can.
    """

    names: tuple[str, ...]
    ranks: tuple[float, ...]
    tasks: int
    friedman_p: float
    cliques: tuple[tuple[int, int], ...]
    too_few: str


@dataclass(frozen=True)
class Bounded:
    """An aggregate and its interval."""

    value: float
    low: float
    high: float


def least_deviation(samples: float, seeds: int = 1) -> float:
    """Return half a test sample in percentage points: the least standard deviation of a unit that intervals suppose.

    An accuracy is a count of right samples, and so is the difference of two. Counts that repeat in all seeds show only
    that the mean lies between their neighbours, and a variable within an interval as long as one sample has at most
    half a sample as its standard deviation (Popoviciu 1935). With this floor Student's 95 % interval of counts that
    fall on either of two neighbours misses in at most 5 % with up to 17 seeds and in 6 % with more, whatever the share
    of either. With the variance of rounding, a twelfth of a sample's square (Sheppard 1898), it misses in up to 14 %.

    Args:
        samples: test samples. A mean over clients counts as many: whatever the weights, which sum to 1, one sample
            changes it by 1 / samples on average.
        seeds: over which a unit is a mean.
    """
    return 50 / samples / math.sqrt(seeds)


def summarise(values: Sequence[float] | Floats, level: float = LEVEL, least: float = 0.0) -> Summary:
    """Mean, standard deviation (ddof 1) and the `1 - level` t interval of independent runs.

    Args:
        values: one of each run.
        level: probability that the interval misses.
        least: standard deviation that the interval supposes at least (`least_deviation`); 0 for what is not counted.
    """
    x = np.asarray(values, dtype=float)
    mean = float(x.mean()) if len(x) else math.nan
    if len(x) < 2:
        return Summary(len(x), mean, math.nan, math.nan, math.nan)
    std = float(x.std(ddof=1))
    half = _t_quantile(len(x) - 1, level) * max(std, least) / math.sqrt(len(x))
    return Summary(len(x), mean, std, mean - half, mean + half)


def paired(
    values: Mapping[str, float], reference: Mapping[str, float], level: float = LEVEL, least: float = 0.0
) -> Comparison:
    """Compare two methods, `{seed: score}` each, on the seeds that both have; `level` and `least` as of `summarise`."""
    differences = _differences(values, reference)
    summary = summarise(differences, level, least)
    effect, low, high = math.nan, math.nan, math.nan
    if summary.n > 1 and (std := max(summary.std, least)) > 0:
        effect = summary.mean / std
        low, high = _effect_interval(effect, summary.n, level)
    p = p_value(differences, least)
    return Comparison(summary.n, summary.mean, summary.low, summary.high, p, effect, low, high)


def geometric(ratios: Sequence[float] | Floats) -> tuple[float, float]:
    """Geometric mean of ratios, and the factor of one standard deviation; nan where there are too few."""
    logs = summarise(np.log(np.asarray(ratios, dtype=float)))
    return math.exp(logs.mean), math.exp(logs.std)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for the number of comparisons (Holm 1979), in the given order; nan stays and does not count."""
    p = np.array(p_values, dtype=float)
    order = np.argsort(p)[: np.count_nonzero(~np.isnan(p))]
    p[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return [float(adjusted) for adjusted in p]


def ranks(scores: Floats) -> Floats:
    """Ranks within each task, 1 for the highest score, ties shared: `[tasks, methods]` -> `[tasks, methods]`.

    Scores that differ by rounding only are tied.
    """
    from scipy import stats

    scores = np.asarray(scores, dtype=float)
    order = np.argsort(-scores, axis=1, kind="stable")
    falling = np.take_along_axis(scores, order, axis=1)
    steps = -np.diff(falling, axis=1) > _ROUNDING * np.abs(falling).max(axis=1, keepdims=True)
    places = np.concatenate([np.zeros((len(scores), 1)), steps.cumsum(axis=1)], axis=1)
    ranked = np.empty_like(scores)
    np.put_along_axis(ranked, order, stats.rankdata(places, axis=1), axis=1)
    return ranked


def tasks_needed(methods: int) -> int:
    """Fewest tasks at which Wilcoxon's signed-rank test with Holm can call any pair of `methods` different.

    The exact two-sided p value is at least `2 ** (1 - tasks)`, and Holm multiplies the smallest by the number of pairs.
    """
    pairs = methods * (methods - 1) / 2
    return 1 + math.ceil(math.log2(pairs / LEVEL))


def critical_difference(names: Sequence[str], scores: Floats) -> CriticalDifference:
    """Ranks, Friedman's test, and groups of methods that are not significantly different.

    Args:
        names: the methods.
        scores: `[tasks, methods]`, higher is better, nothing missing.
    """
    average = ranks(scores).mean(axis=0)
    order = np.argsort(average, kind="stable")
    tasks, methods = scores.shape
    result = (tuple(names[k] for k in order), tuple(float(average[k]) for k in order), tasks)
    if methods < 3:
        return CriticalDifference(*result, math.nan, (), "ranks are compared from three methods up")
    if tasks < tasks_needed(methods):
        reason = (
            f"too few tasks for a critical-difference diagram: with {methods} methods, Wilcoxon's test with Holm's "
            f"correction can tell no pair apart below {tasks_needed(methods)} tasks, and there are {tasks}"
        )
        return CriticalDifference(*result, math.nan, (), reason)
    from scipy import stats

    friedman_p = float(stats.friedmanchisquare(*scores.T).pvalue)
    differs = _different_pairs(scores[:, order], LEVEL) if friedman_p < LEVEL else np.zeros((methods, methods), bool)
    return CriticalDifference(*result, friedman_p, _cliques(differs), "")


def iqm(tasks: Sequence[Floats]) -> Floats:
    """Interquartile mean: the mean of the middle half of all runs of all tasks.

    Args:
        tasks: one array per task, `[..., runs]`.

    Returns:
        `[...]`.
    """
    from scipy import stats

    return np.asarray(stats.trim_mean(np.concatenate(list(tasks), axis=-1), 0.25, axis=-1))


def probability_of_improvement(x: Sequence[Floats], y: Sequence[Floats]) -> Bounded:
    """P(X > Y) on the same unit of a random task, ties counting half, with Clopper and Pearson's interval.

    The wins of several tasks are a sum of independent trials of unequal probabilities; the binomial interval for their
    mean probability is, if anything, too wide (Hoeffding 1956). Tasks count alike, so where one has fewer units than
    others, its variance counts in full: all are taken to have as few.

    Args:
        x, y: one array `[units]` per task, the same tasks and units in both.
    """
    from scipy import stats

    signs = [np.sign(_level_out(a - b, a)) for a, b in zip(x, y, strict=True)]
    value = float(np.mean([(sign.mean() + 1) / 2 for sign in signs]))
    n = len(signs) * min(map(len, signs))
    wins = value * n
    low = float(stats.beta.ppf(LEVEL / 2, wins, n - wins + 1)) if wins > 0 else 0.0
    high = float(stats.beta.ppf(1 - LEVEL / 2, wins + 1, n - wins)) if wins < n else 1.0
    return Bounded(value, low, high)


def bootstrap(
    tasks: Sequence[Floats],
    aggregate: Callable[..., Floats],
    *address: int | str,
    repeats: int = 2000,
    least: Sequence[float] = (),
) -> Bounded:
    """Interval of `aggregate(tasks)` in percent: Student's t with the bootstrap's standard error, on the logit scale.

    Units are drawn within each task, for all methods the same ones where `address` is the same. With n units a
    percentile interval is too narrow twice: the resampled variance is (n - 1) / n of the true one, and its quantiles
    are normal ones (Hesterberg 2015, "What teachers should know about the bootstrap"). Both are put right here, task
    by task; the degrees of freedom are Satterthwaite's over tasks, since an aggregate may rest on few of them (an
    interquartile mean of tasks that differ rests on half).

    Args:
        tasks: one array `[units]` per task, percent.
        aggregate: maps a list of `[..., units]` to `[...]`.
        address: where the draws come from (`bench.rng.generator`).
        repeats: number of draws.
        least: of each task, the standard deviation of a unit (`least_deviation`) from which the error of an
            interquartile mean, the mean of half of all units, is taken at least; empty: 0.
    """
    rng = generator("bootstrap", *address)
    value = float(aggregate(tasks))
    if all(len(units) < 2 for units in tasks):
        return Bounded(value, math.nan, math.nan)
    draws = [units[rng.integers(len(units), size=(repeats, len(units)))] for units in tasks]
    aggregates = aggregate(draws)
    several = [units for units in draws if units.shape[-1] > 1]
    freedoms = np.array([units.shape[-1] - 1.0 for units in several])
    shares = np.array([_part(units, aggregates) for units in several])
    parts = shares * (freedoms + 1) / freedoms
    error = float(aggregates.std()) * math.sqrt(parts.sum() / shares.sum() if shares.any() else 1)
    error = max(error, math.sqrt(2 * np.square(least).mean() / sum(map(len, tasks))) if least else 0.0)
    return Bounded(value, *within_percent(value, _t_quantile(satterthwaite(parts, freedoms), LEVEL) * error))


def satterthwaite(parts: Floats, freedoms: Floats) -> float:
    """Degrees of freedom of a sum of independent variances (Satterthwaite 1946, Biometrics Bulletin 2).

    Args:
        parts: the variances, each with its factor in the sum; all of their freedom where all are 0.
        freedoms: degrees of freedom of each.
    """
    if not parts.any():
        return float(freedoms.sum())
    return float(parts.sum() ** 2 / (parts**2 / freedoms).sum())


def _part(units: Floats, aggregates: Floats) -> float:
    """Part of the aggregates' variance, `[draws]`, that the mean of a task's resampled `[draws, units]` explains."""
    means = units.mean(axis=-1)
    spread = float(means.var())
    return float(np.cov(means, aggregates, bias=True)[0, 1]) ** 2 / spread if spread else 0.0


def unpaired(x: tuple[float, float, int], y: tuple[float, float, int]) -> tuple[float, float]:
    """Interval of the difference of two independent means from `(mean, standard deviation with ddof 1, n)` of each.

    Unequal variances; the critical value is the mean of the two t quantiles weighted by the means' variances (Cochran
    and Cox 1957, "Experimental designs"): with a printed mean of three runs Welch's falls to 93 %
    coverage, this one stays above 95. nan where an n is below 2, or there is no spread at all.
    """
    if min(x[2], y[2]) < 2 or x[1] == y[1] == 0:
        return math.nan, math.nan
    x_var, y_var = x[1] ** 2 / x[2], y[1] ** 2 / y[2]
    quantile = (x_var * _t_quantile(x[2] - 1, LEVEL) + y_var * _t_quantile(y[2] - 1, LEVEL)) / (x_var + y_var)
    half = quantile * math.sqrt(x_var + y_var)
    return x[0] - y[0] - half, x[0] - y[0] + half


def within_percent(value: float, half: float) -> tuple[float, float]:
    """`value - half, value + half` on the logit scale (delta method), so that it stays within 0 to 100 percent."""
    from scipy import special

    share = value / 100
    if half == 0:
        return value, value
    if not 0 < share < 1 or math.isnan(half):
        return math.nan, math.nan
    reach = half / 100 / (share * (1 - share))
    low, high = 100 * special.expit(special.logit(share) + np.array([-reach, reach]))
    return min(float(low), value), max(float(high), value)  # there and back, rounding may pass the value


def _differences(values: Mapping[str, float], reference: Mapping[str, float]) -> Floats:
    """Subtract seed by seed, on common seeds; differences that are rounding only become 0, or equal to each other."""
    seeds = sorted(values.keys() & reference.keys())
    x, y = (np.array([scores[seed] for seed in seeds], dtype=float) for scores in (values, reference))
    return _level_out(x - y, x)


def _level_out(differences: Floats, scores: Floats) -> Floats:
    """Remove from differences what is rounding only, at the size of the scores."""
    rounding = _ROUNDING * np.abs(scores).max(initial=0.0)
    level = np.where(np.abs(differences) <= rounding, 0.0, differences)
    if len(level) and np.ptp(level) <= rounding:
        level[:] = level[0]
    return level


def p_value(differences: Floats, least: float = 0.0) -> float:
    """Two-sided p value of the t test that the mean is 0, with `least` as of `summarise`.

    nan for fewer than two differences, and for equal ones other than 0 without a least spread.
    """
    if len(differences) < 2:
        return math.nan
    std = max(float(differences.std(ddof=1)) if np.ptp(differences) else 0.0, least)
    if std == 0:  # t is 0/0 or infinite
        return 1.0 if differences[0] == 0 else math.nan
    from scipy import special

    t = abs(float(differences.mean())) / std * math.sqrt(len(differences))
    return float(2 * special.stdtr(len(differences) - 1, -t))


@cache
def _t_quantile(freedom: float, level: float) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, 1 - level / 2))


def _effect_interval(effect: float, n: int, level: float) -> tuple[float, float]:
    """Interval of d_z: the noncentralities under which the observed t is a `level / 2` tail event.

    The noncentral t distribution is integrated over its chi variable on a grid of quantiles: scipy's `nct.cdf` is nan
    for the large t of nearly constant differences.
    """
    from scipy import optimize, special

    t = effect * math.sqrt(n)
    upper = 1 - (np.arange(4000) + 0.5) / 4000
    chi = np.sqrt(special.chdtri(n - 1, upper) / (n - 1))
    far = 10 + abs(t) * float(chi.max())

    def bound(tail: float) -> float:
        return float(optimize.brentq(lambda nc: special.ndtr(t * chi - nc).mean() - tail, -far, far))

    return bound(1 - level / 2) / math.sqrt(n), bound(level / 2) / math.sqrt(n)


def _different_pairs(scores: Floats, level: float) -> npt.NDArray[np.bool_]:
    """`[methods, methods]`: which pairs Wilcoxon's signed-rank test with Holm's correction tells apart."""
    from scipy import stats

    methods = scores.shape[1]
    rows, columns = np.triu_indices(methods, 1)
    differences = (scores[:, rows] - scores[:, columns]).T
    p_values = [float(stats.wilcoxon(of_pair).pvalue) if of_pair.any() else 1.0 for of_pair in differences]
    differs = np.zeros((methods, methods), dtype=bool)
    differs[rows, columns] = differs[columns, rows] = np.array(holm(p_values)) < level
    return differs


def _cliques(differs: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Longest runs of neighbouring ranks without a differing pair, none inside another, none of one method."""
    cliques: list[tuple[int, int]] = []
    for first in range(len(differs)):
        last = first
        while last + 1 < len(differs) and not differs[first : last + 1, last + 1].any():
            last += 1
        if last > first and (not cliques or last > cliques[-1][1]):
            cliques.append((first, last))
    return tuple(cliques)
