"""Comparisons with the best: which method may be called best, which equal it, and which cannot be told apart.

- The model: a block is a task with one of its units (partition or seed), in which all methods share data, initial
  weights and client sampling. For two methods, the differences of their accuracies' logits vary around the mean of the
  task, on every task with a variance of its own. The weighted mean over the tasks of those means is estimated.
- The variance of a pair's mean is the sum of the tasks' variances with their weights. Its degrees of freedom are
  Satterthwaite's, with the parts that the tasks have on average over the pairs: of a single pair they hang on the
  variances that the test itself divides by, and far out in the tail that tells equal methods apart.
- Tasks run on the same seeds may share noise (data, initial weights); Kish's design effect, over all pairs, counts it.
- Few seeds hardly determine a variance, so the variances of all pairs are moderated (Smyth 2004, "Linear models and
  empirical Bayes methods", equation for the posterior variance; the prior's degrees of freedom by his moments of log
  variances).
- A method that diverges in some cells and not in others is erratic: guessing and training are two distributions. Its
  pairs keep their own variances, with the fewest degrees of freedom, and take no part in what the variances of the
  others say together: else it would widen all intervals, and its own would be too narrow. It is known by its cells'
  states and not by its variances, of which the large ones would be chosen.
- Accuracies are counts, so no pair's variance is taken for less than that of half a test sample.
- The intervals are simultaneous for "mine minus the best of the others" (Hsu 1984, constrained multiple comparisons
  with the best), because the best method is chosen on the same data.
- The critical value is Bonferroni's over all pairs: Hsu's own does not control how often one of several exactly equal
  methods is called worse, and Tukey's supposes equal variances.

`python -m tools.simulation.simulate` measures what this covers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bench.data import Floats
from reports.statistics.inference import LEVEL, satterthwaite

MARGIN = 0.5
"""Percentage points: methods that differ by less count as equivalent."""
_EDGE = 0.05
"""Percent: accuracies are kept this far from 0 and 100, where logits end."""
_MOST_SEEDS = 10_000
Verdict = Literal["better", "equivalent", "undecided", "worse"]
TaskOutcome = Literal["win", "tie", "undecided", "loss"]


@dataclass(frozen=True)
class Standing:
    """A method against the best of the others.

    Attributes:
        difference, low, high: in percentage points at the level of that best one, with the simultaneous interval.
        verdict: `better`: than every other. `worse`: than the best. `equivalent`: at most the margin below the best,
            or above every other. `undecided`: neither is shown.
        seeds: units per task at which one point of difference would be found four times in five; 0: more than 10,000.
    """

    difference: float
    low: float
    high: float
    verdict: Verdict
    seeds: int


@dataclass(frozen=True)
class Moderated:
    """Variances of the pairs' mean differences, `[methods, methods]` as all else.

    Attributes:
        variance: shrunken towards each other.
        freedom: degrees of freedom of those, the prior's among them.
        plain: not shrunken.
        plain_freedom: degrees of freedom of those.
    """

    variance: Floats
    freedom: Floats
    plain: Floats
    plain_freedom: Floats

    def cautious(self) -> tuple[Floats, Floats]:
        """Variances and degrees of freedom for differences in percentage points, corrected for fewer than all pairs.

        A method that is noisy on one task alone is noisier than the others let it seem, and it is such methods that
        intervals for all at once miss. So a variance counts that is larger than the shrunken one, and the degrees of
        freedom are those of the method's own units: with some of the prior's, intervals on single tasks miss too often
        in leagues with the shipped entries' own deviations (`python -m tools.simulation.coverage --residuals`).
        """
        return np.maximum(self.variance, self.plain), self.plain_freedom


def logits(percent: Floats) -> Floats:
    """Log odds of accuracies in percent, at most those of 0.05 and 99.95 %."""
    share = np.clip(np.asarray(percent, dtype=float), _EDGE, 100 - _EDGE) / 100
    odds: Floats = np.log(share / (1 - share))
    return odds


def least_logits(tasks: Sequence[Floats], least: Sequence[float]) -> list[Floats]:
    """Least standard deviations of logits, `[methods]` for each task, from those in points (`least_deviation`).

    Args:
        tasks: accuracies in percent, `[methods, units]`.
        least: of each task; empty: none, and so is what is returned.
    """
    middle = [task.mean(axis=1) for task in tasks]
    return [
        np.maximum(logits(mean + points) - logits(mean), logits(mean) - logits(mean - points))
        for mean, points in zip(middle, least, strict=False)
    ]


def against_best(
    tasks: Sequence[Floats],
    margin: float = MARGIN,
    erratic: Sequence[bool] | None = None,
    least: Sequence[float] = (),
) -> list[Standing]:
    """Compare every method with the best of the others, over all tasks.

    Args:
        tasks: for each task, accuracies in percent, `[methods, units]`; units in one order where tasks share them.
        margin: of equivalence, in percentage points.
        erratic: of each method, whether it diverged in some cells and not in others; None: no method has.
        least: of each task, the least standard deviation of a unit in points (`least_deviation`); empty: 0.

    Returns:
        A standing per method; empty where there are fewer than two methods or no task has two units.
    """
    scores = [logits(task) for task in tasks]
    if len(scores[0]) < 2 or all(task.shape[1] < 2 for task in scores):
        return []
    means = np.array([task.mean(axis=1) for task in scores])
    mean = means.mean(axis=0)
    moderated = pairs_of(scores, np.full(len(scores), 1 / len(scores)), erratic, least_logits(tasks, least))
    critical = pairwise_critical(len(mean), moderated.freedom, LEVEL)
    lows, highs = constrained(mean, critical * np.sqrt(moderated.variance))
    per_unit = moderated.variance * len(scores) / sum(1 / task.shape[1] for task in scores)
    standings = []
    first, second = (int(k) for k in np.argsort(-mean, kind="stable")[:2])
    for k in range(len(mean)):
        rival = second if k == first else first
        low, difference, high = (
            _points(means[:, rival], value) for value in (lows[k], mean[k] - mean[rival], highs[k])
        )
        seeds = _seeds_needed(means[:, rival], float(per_unit[k, rival]), float(critical[k, rival]))
        standings.append(Standing(difference, low, high, _verdict(low, high, margin), seeds))
    return standings


def outcomes(
    task: Floats,
    comparisons: int,
    margin: float = MARGIN,
    erratic: Sequence[bool] | None = None,
    least: float = 0.0,
) -> list[list[TaskOutcome]]:
    """Compare every method with every other on one task, by the verdict on the one with the lower mean.

    It has lost where it is worse than the other, a tie is where it is equivalent to it.

    Args:
        task: accuracies in percent, `[methods, units]`.
        comparisons: how many of them are looked at, for Bonferroni's correction.
        margin: of equivalence, in percentage points.
        erratic: as of `against_best`.
        least: the least standard deviation of a unit in points (`least_deviation`).

    Returns:
        `[method][other]`, the outcome for the first; `undecided` everywhere where there is one unit only.
    """
    from scipy import stats

    scores = logits(task)
    methods, units = scores.shape
    if units < 2:
        return [["undecided"] * methods for _ in range(methods)]
    mean = scores.mean(axis=1)
    moderated = pairs_of([scores], np.ones(1), erratic, least_logits([task], [least]))
    half = stats.t.ppf(1 - LEVEL / (2 * comparisons), moderated.freedom) * np.sqrt(moderated.variance)
    table: list[list[TaskOutcome]] = [["tie"] * methods for _ in range(methods)]
    for method in range(methods):
        for other in range(methods):
            if method != other:
                table[method][other] = _outcome(mean[method], mean[other], half[method, other], margin)
    return table


def _outcome(mean: float, other: float, half: float, margin: float) -> TaskOutcome:
    """Decide between two methods, from their mean logits and half the interval of the difference."""
    low, high = (_points(np.array([max(mean, other)]), end - abs(mean - other)) for end in (-half, half))
    verdict = _verdict(low, high, margin)
    if verdict == "worse":
        return "win" if mean > other else "loss"
    return "undecided" if verdict == "undecided" else "tie"


def pairs_of(
    scores: Sequence[Floats],
    weights: Floats,
    erratic: Sequence[bool] | None = None,
    least: Sequence[Floats] = (),
) -> Moderated:
    """Variances of all pairs' differences of weighted means; those of an erratic method's pairs are not moderated.

    Args:
        scores, weights, least: as of `pair_variances`.
        erratic: as of `against_best`.
    """
    variance, degrees = pair_variances(scores, weights, least)
    if erratic is None or not any(erratic):
        moderated, more = moderate(variance, degrees)
        return Moderated(moderated, np.full(variance.shape, more), variance, np.full(variance.shape, degrees))
    fewest = min(task.shape[1] for task in scores if task.shape[1] > 1)
    freedom = np.full(variance.shape, fewest - 1.0)
    pairs = Moderated(variance, freedom, variance.copy(), freedom.copy())
    steady = ~np.asarray(erratic, dtype=bool)
    if steady.sum() > 1:
        both = np.ix_(steady, steady)
        plain, degrees = pair_variances([task[steady] for task in scores], weights, [of[steady] for of in least])
        pairs.plain[both], pairs.plain_freedom[both] = plain, degrees
        pairs.variance[both], pairs.freedom[both] = moderate(plain, degrees)
    return pairs


def moderate(variances: Floats, freedom: float) -> tuple[Floats, float]:
    """Smyth's moderated variances of all pairs of methods, and their degrees of freedom.

    The degrees of freedom are at most those of all methods together: more pairs than methods are no more data.

    Args:
        variances: `[methods, methods]`, symmetric; the diagonal counts nowhere.
        freedom: degrees of freedom of each variance.
    """
    from scipy import special

    methods = len(variances)
    most = float((methods - 1) * freedom)
    pairs = variances[np.triu_indices(methods, 1)]
    if not pairs.any():
        return variances, most
    pairs = np.maximum(pairs, 1e-5 * max(float(np.median(pairs)), float(pairs.mean())))
    if methods < 3:
        return np.broadcast_to(pairs, variances.shape), most
    logs = np.log(pairs) - special.digamma(freedom / 2) + math.log(freedom / 2)
    excess = float(logs.var(ddof=1) - special.polygamma(1, freedom / 2))
    if excess <= 0:
        return np.full(variances.shape, pairs.mean()), most
    prior = 2 * _trigamma_inverse(excess)
    centre = math.exp(float(logs.mean()) + float(special.digamma(prior / 2)) - math.log(prior / 2))
    return (prior * centre + freedom * variances) / (prior + freedom), min(prior + freedom, most)


def pair_variances(scores: Sequence[Floats], weights: Floats, least: Sequence[Floats] = ()) -> tuple[Floats, float]:
    """Variance of the difference of each pair's weighted means, `[methods, methods]`, and its degrees of freedom.

    A task with one unit shows no variance; it is taken to have the mean of the other tasks', by degrees of freedom.
    Tasks that share their seeds may share some of their noise; all variances are enlarged by as much as that shows.

    Args:
        scores: for each task, `[methods, units]`; two units at least in one of them.
        weights: of the tasks.
        least: for each task, least standard deviations `[methods]` of a unit, on the scale of the scores; empty: 0.
    """
    units = np.array([task.shape[1] for task in scores])
    freedoms = units - 1.0
    single = units == 1
    shares = np.where(single, 0.0, weights**2 / units) + np.square(weights[single]).sum() * freedoms / freedoms.sum()
    variances = [
        _variances(task, of_task)
        for task, of_task in zip(scores, least or [np.zeros(len(task)) for task in scores], strict=True)
        if task.shape[1] > 1
    ]
    parts = np.array([share * of_task for share, of_task in zip(shares[~single], variances, strict=True)])
    variance = parts.sum(axis=0)
    return variance * _design_effect(scores, weights, variance), satterthwaite(
        parts.mean(axis=(1, 2)), freedoms[~single]
    )


def _design_effect(scores: Sequence[Floats], weights: Floats, variance: Floats) -> float:
    """Kish's design effect (1965, "Survey sampling"), at least 1: a seed is a cluster of its cells on all tasks.

    The variance of the seeds' own means over tasks, over that for independent tasks, both summed over all pairs; 1
    where tasks differ in their number of units, as they are not the same seeds then.
    """
    if len(scores) < 2 or len({task.shape[1] for task in scores}) > 1 or not variance.any():
        return 1.0
    by_seed = np.tensordot(weights, np.array(scores), 1)
    return max(1.0, float(_variances(by_seed, np.zeros(len(by_seed))).sum() / by_seed.shape[1] / variance.sum()))


def _variances(task: Floats, least: Floats) -> Floats:
    """Variance over units of the difference of each pair, `[methods, methods]`, from `[methods, units]`.

    It is at least the mean of the two methods' least ones, whose deviations are `least`.
    """
    residuals = task - task.mean(axis=1, keepdims=True)
    differences = residuals[:, None] - residuals[None]
    squares = np.square(least)
    floor = (squares[:, None] + squares[None]) / 2 * (1 - np.eye(len(task)))
    variances: Floats = np.einsum("iju,iju->ij", differences, differences) / (task.shape[1] - 1)
    return np.maximum(floor, variances)


def constrained(mean: Floats, half: Floats) -> tuple[Floats, Floats]:
    """Hsu's constrained intervals of `mean[i] - max(mean of the others)`: ends never on the wrong side of 0."""
    difference = mean[:, None] - mean[None]
    others = ~np.eye(len(mean), dtype=bool)
    highs = np.maximum(0, np.where(others, difference + half, np.inf).min(axis=1))
    candidates = others & (highs > 0)[None]
    lows = np.where(candidates, difference - half, np.inf).min(axis=1)
    return np.where(np.isinf(lows), 0.0, np.minimum(0, lows)), highs


def _points(level: Floats, difference: float) -> float:
    """A difference of logits in percentage points, from a method whose tasks have the logits `level`."""
    from scipy import special

    return float(100 * (special.expit(level + difference) - special.expit(level)).mean())


def _verdict(low: float, high: float, margin: float) -> Verdict:
    if low >= 0 and high > 0:
        return "better"
    if high <= 0 and low < -margin:
        return "worse"
    return "equivalent" if low >= -margin else "undecided"


def pairwise_critical(methods: int, freedom: Floats, level: float) -> Floats:
    """Quantiles for simultaneous two-sided intervals of all pairs' differences (Bonferroni), of each pair."""
    from scipy import special

    different, places = np.unique(freedom, return_inverse=True)
    quantiles: Floats = -special.stdtrit(different, level / (methods * (methods - 1)))
    return quantiles[places].reshape(np.shape(freedom))


def _seeds_needed(level: Floats, variance: float, critical: float) -> int:
    """Units per task at which one point below `level` is found in 80 of 100 cases; normal approximation.

    Args:
        level: logits of the better one's accuracies, a number per task.
        variance: of the mean difference over tasks, with one unit each.
        critical: quantile of the test.
    """
    from scipy import special, stats

    below = np.clip(special.expit(level) - 0.01, 1e-4, None)
    gap = float((level - special.logit(below)).mean())
    units = (critical + float(stats.norm.ppf(0.8))) ** 2 * variance / gap**2
    return max(2, math.ceil(units)) if units <= _MOST_SEEDS else 0


def _trigamma_inverse(value: float) -> float:
    """x with trigamma(x) = value."""
    from scipy import optimize, special

    return math.exp(optimize.brentq(lambda x: math.log(special.polygamma(1, math.exp(x)) / value), -18, 28))
