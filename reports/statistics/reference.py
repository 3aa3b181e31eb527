"""Differences of many methods from one reference, averaged over tasks, where units are as few as draws of tuning.

With four units Student's t interval of a method has three degrees of freedom, and corrected for 66 methods it is eleven
times as wide as the standard error. The variances of all pairs are therefore moderated, as those of ranks are
(`reports.statistics.best`): what all methods' spreads say together counts for each, with caution. Bonferroni's
correction makes intervals hold for all methods at once, so also for one that was chosen because it leads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.data import Floats
from reports.statistics.best import pairs_of


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
