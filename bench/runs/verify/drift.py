"""Tests of whether another computer's numbers differ from those computed here only as by rounding (docs/verify.md).

Where training drifts apart, one cell says nothing: an honest accuracy may be ten points off. But neither of two
computers rounds in favour of a method, so over several cells the differences are as often up as down, and as far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.results.figures import further_scores, reported_figures
from bench.results.results import CellView

LEVEL = 1e-4
"""How probable it is at most that an honest run is called shifted."""
STABLE = 1e-3
"""Largest relative difference of losses with which both paths have trained the same models but for rounding."""

_FLIPS, _BLOCK = 2**17, 2**12


@dataclass(frozen=True)
class Shift:
    """A figure that is shifted in a run.

    Attributes:
        name: name of the figure.
        mean: mean difference of the run's numbers above those computed here, in points (hundredths).
        cells: number of cells that have other numbers of it here.
        p: probability of differences that are so one-sided if each could as well have the other sign.
    """

    name: str
    mean: float
    cells: int
    p: float

    @property
    def text(self) -> str:
        """The shift in words, e.g. `pm accuracy (local, equal) +2.31 points, mean of 17 cells (p = 2e-05)`."""
        return f"{self.name} {self.mean:+.2f} points, mean of {self.cells} cells (p = {self.p:.1g})"


def differences(old: CellView, new: CellView) -> dict[str, float]:
    """Measure how far the reported scores of a cell lie above those of the same cell computed here, by figure.

    Returns:
        Points (hundredths); of a score above 1 as a share of it. Further scores that only rounding moved are 0, as a
        kernel may round up more often than down. A derived metric is another's, and has none.
    """
    apart = {}
    for quantity in ("accuracy", *(name for name in further_scores([old]) if name in further_scores([new]))):
        here = {_name(figure, quantity): figure["value"] for figure in reported_figures(new, quantity)}
        for figure in reported_figures(old, quantity):
            first, other = figure["value"], here.get(_name(figure, quantity), math.nan)
            points = 100 * (first - other) / max(1.0, abs(first), abs(other))
            if not (figure["derived"] or math.isnan(points)):
                moved = quantity == "accuracy" or abs(points) > 100 * STABLE
                apart[_name(figure, quantity)] = points if moved else 0.0
    return apart


def _name(figure: dict[str, Any], quantity: str) -> str:
    mean = f", {figure['mean']}" if figure["mean"] else ""
    return f"{figure['metric']} {quantity} ({figure['on']}{mean})"


def shift(cells: Sequence[dict[str, float]]) -> Shift | None:
    """Return the figure whose differences are one-sided over the cells of a run, or None.

    The test flips the signs of whole cells, all 2^n ways or 131,072 random ones, and compares the largest of the
    figures' sums of signed ranks (Wilcoxon), each divided by the root of its sum of squares. So it supposes nothing
    about how far honest cells drift, and one that drifts far decides nothing. The level holds for all figures together.
    """
    from scipy.stats import permutation_test

    names = sorted({name for apart in cells for name in apart})
    table = np.array([[apart.get(name, 0.0) for name in names] for apart in cells]).reshape(len(cells), len(names))
    table = np.where(np.abs(table) > 1e-9, table, 0.0)  # a mean's last digit may depend on the CPU
    table = table[table.any(axis=1)]
    if len(table) < 2:  # of fewer than 15 cells none reaches the level
        return None
    ranks = np.column_stack([_signed_ranks(column) for column in table.T])
    sums = np.abs(ranks.sum(axis=0))
    p = float(
        permutation_test(
            (np.ones(len(table)),),  # of a single sample the test flips signs, here those of the cells
            lambda signs, axis: np.abs(signs @ ranks).max(axis=axis),
            permutation_type="samples",
            alternative="greater",
            n_resamples=_FLIPS,
            vectorized=True,
            batch=_BLOCK,
            rng=np.random.default_rng(0),
        ).pvalue
    )
    if p > LEVEL:
        return None
    worst = int(sums.argmax())
    moved = table[:, worst][table[:, worst] != 0]
    return Shift(names[worst], float(moved.mean()), len(moved), p)


def _signed_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks of the absolute values with their signs, zeros 0, of length 1."""
    from scipy.stats import rankdata

    ranks = np.sign(values) * np.asarray(rankdata(np.abs(values)), float)
    length = float(np.linalg.norm(ranks))
    return np.asarray(ranks / length if length else ranks)
