"""Ranks with intervals, tiers of methods that cannot be told apart, and differences of many methods from a reference.

A method's rank is one plus the number of methods that are better. Its interval (Mogstad, Romano, Shaikh and Wilhelm
2023, "Inference for ranks", by simultaneous intervals of all pairs' differences) counts those that are surely better
and those that are surely worse. Differences are of logits of accuracy, paired by unit; tasks are averaged within their
data family and then over families, so that ten tasks of one data set do not outvote one of another. Each task's own
variance counts with the square of its weight, and the sums are moderated (`reports.statistics.best`). The intervals say
what other seeds could change, not what other tasks could.

Of differences from a reference units are as few as draws of tuning. With four, Student's t interval of a method has
three degrees of freedom, and corrected for 66 methods it is eleven times as wide as the standard error: so their
variances are moderated, too, with caution. Bonferroni's correction makes intervals hold for all methods at once, so
also for one that was chosen because it leads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.data import Floats
from reports.statistics.best import least_logits, logits, pairs_of, pairwise_critical
from reports.statistics.inference import LEVEL


@dataclass(frozen=True)
class Ranked:
    """A method's place: mean logit over families, rank interval (1 is best), and tier (1 is best)."""

    mean: float
    first: int
    last: int
    tier: int


def rank(
    tasks: Sequence[Floats],
    families: Sequence[str],
    erratic: Sequence[bool] | None = None,
    least: Sequence[float] = (),
) -> list[Ranked]:
    """Rank methods over tasks.

    Args:
        tasks: for each task, accuracies in percent, `[methods, units]`; two units at least in one of them, and in one
            order where tasks share them.
        families: the data family of each task.
        erratic: of each method, whether it diverged in some cells and not in others; None: no method has.
        least: of each task, the least standard deviation of a unit in points (`least_deviation`); empty: 0.
    """
    mean, half = pair_intervals(tasks, families, erratic, least=least)
    above = mean[None] - mean[:, None] > half  # [method, other]: the other is surely better
    firsts, lasts = 1 + above.sum(axis=1), len(mean) - above.sum(axis=0)
    tiers = _tiers(mean, firsts, lasts)
    return [Ranked(float(m), int(a), int(b), tier) for m, a, b, tier in zip(mean, firsts, lasts, tiers, strict=True)]


def pair_intervals(
    tasks: Sequence[Floats],
    families: Sequence[str],
    erratic: Sequence[bool] | None = None,
    level: float = LEVEL,
    least: Sequence[float] = (),
) -> tuple[Floats, Floats]:
    """Mean logits over tasks, `[methods]`, and half widths of the differences' simultaneous intervals, of each pair.

    Args:
        tasks, families, erratic, least: as of `rank`.
        level: probability that not all of them hold.
    """
    scores = [logits(task) for task in tasks]
    weights = family_weights(families)
    mean = weights @ np.array([task.mean(axis=1) for task in scores])
    moderated = pairs_of(scores, weights, erratic, least_logits(tasks, least))
    return mean, pairwise_critical(len(mean), moderated.freedom, level) * np.sqrt(moderated.variance)


def family_weights(families: Sequence[str]) -> Floats:
    """Weights of tasks, sum 1: every family counts the same, and within it every task."""
    sizes = {family: families.count(family) for family in families}
    return np.array([1 / (len(sizes) * sizes[family]) for family in families])


def _tiers(mean: Floats, firsts: "np.ndarray[tuple[int], np.dtype[np.intp]]", lasts: Floats) -> list[int]:
    """Divide methods into tiers, from the best down: the rank intervals of a tier overlap that of its first method."""
    tiers = [0] * len(mean)
    tier, end = 0, 0
    for method in np.argsort(-mean, kind="stable"):
        if firsts[method] > end:
            tier, end = tier + 1, int(lasts[method])
        tiers[method] = tier
    return tiers


@dataclass(frozen=True)
class Differences:
    """Mean differences from a reference.

    Attributes:
        mean, error: `[methods]` weighted means over tasks, and their standard errors.
        freedom: `[methods]` degrees of freedom of the errors.
    """

    mean: Floats
    error: Floats
    freedom: Floats

    def half(self, level: float) -> Floats:
        """Half widths `[methods]` of two-sided intervals that miss with the probability `level` each."""
        from scipy import special

        return np.asarray(self.error * -special.stdtrit(self.freedom, level / 2))

    def p_values(self) -> list[float]:
        """Two-sided p values that each mean is 0; 1 where nothing differs."""
        from scipy import stats

        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.error > 0, np.abs(self.mean) / self.error, np.where(self.mean == 0, 0.0, np.inf))
        return [float(p) for p in 2 * stats.t.sf(t, self.freedom)]


def differences(
    tasks: Sequence[Floats],
    reference: Sequence[Floats],
    weights: Floats,
    erratic: Sequence[bool] | None = None,
    least: Sequence[float] = (),
) -> Differences:
    """Compare methods with a reference, unit by unit.

    Args:
        tasks: for each task, `[methods, units]`; two units at least in one of them, in one order where they are shared.
        reference: for each task, `[units]`.
        weights: of the tasks.
        erratic: of the reference and then of each method, whether it diverged in some cells and not in others; None:
            none has.
        least: of each task, the least standard deviation of a unit (`reports.statistics.inference.least_deviation`), on
            the scale of the scores; empty: 0.
    """
    rows = [np.vstack([row, methods]) for row, methods in zip(reference, tasks, strict=True)]
    floors = [np.full(len(task), of_task) for task, of_task in zip(rows, least, strict=False)]
    variance, freedom = pairs_of(rows, weights, erratic, floors).cautious()
    mean = weights @ np.array(
        [methods.mean(axis=1) - row.mean() for row, methods in zip(reference, tasks, strict=True)]
    )
    return Differences(mean, np.sqrt(variance[0, 1:]), freedom[0, 1:])
