"""Statistics for few seeds and few tasks; numpy and scipy only.

What is used where, and why (percentile bootstrap of three seeds covers 71 %, a t interval 95 %):
one cell of a table: Student's t interval; two methods: paired differences per seed, Holm over the comparisons;
aggregates over tasks: stratified bootstrap (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice");
many methods over many tasks: Friedman test, then Wilcoxon signed-rank with Holm (Benavoli, Corani and Mangili 2016).
A task is a data set with its partition; a run is one seed of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from bench.rng import generator

Floats = npt.NDArray[np.float64]
LEVEL = 0.05
_ROUNDING = 1e-9
"""Of a score: what differs by less is equal but for rounding."""


@dataclass(frozen=True)
class Summary:
    """Mean of `n` runs, standard deviation with ddof 1, and Student's t interval; nan where `n` is too small."""

    n: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Paired differences of a method from a reference.

    Attributes:
        n: pairs.
        difference, low, high: mean difference and its t interval.
        p: two-sided p value of the paired t test; 1 where all pairs are equal, nan for fewer than two pairs and where
            all differ by the same amount: t is infinite there, and with few seeds and few test samples that is chance.
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
class Estimate:
    """An aggregate and its percentile interval."""

    value: float
    low: float
    high: float


def summarise(values: Sequence[float] | Floats, level: float = LEVEL) -> Summary:
    """Mean, standard deviation (ddof 1) and the `1 - level` t interval of independent runs."""
    x = np.asarray(values, dtype=float)
    mean = float(x.mean()) if len(x) else math.nan
    if len(x) < 2:
        return Summary(len(x), mean, math.nan, math.nan, math.nan)
    std = float(x.std(ddof=1))
    half = _t_quantile(len(x) - 1, level) * std / math.sqrt(len(x))
    return Summary(len(x), mean, std, mean - half, mean + half)


def paired(values: Mapping[str, float], reference: Mapping[str, float], level: float = LEVEL) -> Comparison:
    """Compare two methods, `{seed: score}` each, on the seeds that both have."""
    differences = _differences(values, reference)
    summary = summarise(differences, level)
    effect, low, high = math.nan, math.nan, math.nan
    if summary.n > 1 and np.ptp(differences) > 0:
        effect = summary.mean / summary.std
        low, high = _effect_interval(effect, summary.n, level)
    p = _p_value(differences)
    return Comparison(summary.n, summary.mean, summary.low, summary.high, p, effect, low, high)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for the number of comparisons (Holm 1979), in the given order; nan stays and does not count."""
    order = sorted((k for k, p in enumerate(p_values) if not math.isnan(p)), key=lambda k: p_values[k])
    adjusted = list(p_values)
    largest = 0.0
    for position, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - position) * p_values[k]))
        adjusted[k] = largest
    return adjusted


def not_significantly_worse(scores: Sequence[Mapping[str, float]], level: float = LEVEL) -> tuple[int, list[bool]]:
    """The best of several methods, and which others are not significantly worse.

    Each method is `{seed: score}`; it is compared with the method of the highest mean on the seeds that both have, by
    paired t tests with Holm's correction over the methods; it is not worse where it is ahead on those seeds. A method
    that shares fewer than two seeds with the best, or is behind by the same amount on all, cannot be tested and is not
    marked.

    Returns:
        Position of the best method, and one mark per method (the best is marked too).
    """
    best = max(range(len(scores)), key=lambda k: float(np.mean(list(scores[k].values()))))
    differences = [_differences(one, scores[best]) for one in scores]
    p_values = holm([math.nan if k == best else _p_value(one) for k, one in enumerate(differences)])
    ahead = [len(one) > 1 and one.mean() > 0 for one in differences]
    return best, [k == best or ahead[k] or p >= level for k, p in enumerate(p_values)]


def ranks(scores: Floats) -> Floats:
    """Ranks within each task, 1 for the highest score, ties shared: `[tasks, methods]` -> `[tasks, methods]`."""
    from scipy import stats

    ranked: Floats = stats.rankdata(-np.asarray(scores, dtype=float), axis=1)
    return ranked


def nemenyi_distance(methods: int, tasks: int, level: float = LEVEL) -> float:
    """Smallest difference of average ranks that Nemenyi's test calls significant (Demsar 2006, equation 3.6)."""
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tasks))


def tasks_needed(methods: int, level: float = LEVEL) -> int:
    """Fewest tasks at which Wilcoxon's signed-rank test with Holm can call any pair of `methods` different.

    The exact two-sided p value is at least `2 ** (1 - tasks)`, and Holm multiplies the smallest by the number of pairs.
    """
    pairs = methods * (methods - 1) / 2
    return 1 + math.ceil(math.log2(pairs / level))


def critical_difference(names: Sequence[str], scores: Floats, level: float = LEVEL) -> CriticalDifference:
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
    if tasks < tasks_needed(methods, level):
        reason = (
            f"too few tasks for a critical-difference diagram: with {methods} methods, Wilcoxon's test with Holm's "
            f"correction can tell no pair apart below {tasks_needed(methods, level)} tasks, and there are {tasks} "
            f"(Nemenyi's critical difference here would be {nemenyi_distance(methods, tasks, level):.1f} ranks)"
        )
        return CriticalDifference(*result, math.nan, (), reason)
    from scipy import stats

    friedman_p = float(stats.friedmanchisquare(*scores.T).pvalue)
    differs = _different_pairs(scores[:, order], level) if friedman_p < level else np.zeros((methods, methods), bool)
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


def probability_of_improvement(x: Sequence[Floats], y: Sequence[Floats]) -> Floats:
    """P(X > Y) for a random task and random runs of it, ties counting half: Mann-Whitney's U / (n m), averaged.

    Args:
        x, y: one array per task, `[..., runs]`, the same tasks in both.

    Returns:
        `[...]`.
    """
    signs = [np.sign(a[..., :, None] - b[..., None, :]) for a, b in zip(x, y, strict=True)]
    return np.asarray(np.mean([(sign.mean(axis=(-2, -1)) + 1) / 2 for sign in signs], axis=0))


def bootstrap(
    samples: Sequence[Sequence[Floats]],
    aggregate: Callable[..., Floats],
    *address: int | str,
    repeats: int = 2000,
    level: float = LEVEL,
) -> Estimate:
    """Percentile interval of `aggregate(*samples)`, runs resampled within each task (stratified).

    Args:
        samples: one or more methods, each a list with one array `[runs]` per task.
        aggregate: maps the methods, each a list of `[..., runs]`, to `[...]`.
        address: where the draws come from (`bench.rng.generator`).
    """
    rng = generator("bootstrap", *address)
    drawn = [[runs[rng.integers(len(runs), size=(repeats, len(runs)))] for runs in method] for method in samples]
    low, high = np.quantile(aggregate(*drawn), [level / 2, 1 - level / 2])
    return Estimate(float(aggregate(*samples)), float(low), float(high))


def _differences(values: Mapping[str, float], reference: Mapping[str, float]) -> Floats:
    """By common seed; differences that are equal but for rounding are made equal, and zero where that is all."""
    seeds = sorted(values.keys() & reference.keys())
    x, y = (np.array([scores[seed] for seed in seeds], dtype=float) for scores in (values, reference))
    differences: Floats = x - y
    rounding = _ROUNDING * np.abs([x, y]).max(initial=0.0)
    differences[np.abs(differences) <= rounding] = 0.0
    if len(seeds) and np.ptp(differences) <= rounding:
        differences[:] = differences[0]
    return differences


def _p_value(differences: Floats) -> float:
    """Two-sided p value of the t test that the mean is 0; nan for fewer than two, and for equal ones other than 0."""
    if len(differences) < 2:
        return math.nan
    if np.ptp(differences) == 0:  # no spread: t is 0/0 or infinite
        return 1.0 if differences[0] == 0 else math.nan
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


@cache
def _t_quantile(freedom: int, level: float) -> float:
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
    p_values = [
        float(stats.wilcoxon(scores[:, a], scores[:, b]).pvalue) if np.any(scores[:, a] != scores[:, b]) else 1.0
        for a, b in zip(rows, columns, strict=True)
    ]
    differs = np.zeros((methods, methods), dtype=bool)
    differs[rows, columns] = differs[columns, rows] = np.array(holm(p_values)) < level
    return differs


def _cliques(differs: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    """Longest runs of neighbouring ranks without a differing pair, none inside another, none of one method."""
    found: list[tuple[int, int]] = []
    for first in range(len(differs)):
        last = first
        while last + 1 < len(differs) and not differs[first : last + 1, last + 1].any():
            last += 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
