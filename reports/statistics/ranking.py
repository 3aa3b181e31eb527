"""Ranks with intervals, and tiers of methods that cannot be told apart.

A method's rank is one plus the number of methods that are better. Its interval (Mogstad, Romano, Shaikh and Wilhelm
2023, "Inference for ranks", by simultaneous intervals of all pairs' differences) counts those that are surely better
and those that are surely worse. Differences are of logits of accuracy, paired by unit; tasks are averaged within their
data family and then over families, so that ten tasks of one data set do not outvote one of another. Each task's own
variance counts with the square of its weight, and the sums are moderated (`reports.statistics.best`). The intervals say
what other seeds could change, not what other tasks could.
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
