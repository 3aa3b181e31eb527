"""Tests of whether another computer's numbers differ from those computed here only as by rounding (docs/verify.md).

Where training drifts apart, one cell says nothing: an honest accuracy may be ten points off. But neither of two
computers rounds in favour of a method, so over several cells the differences are as often up as down, and as far.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isnan, log, log2
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.results.figures import further_scores, reported_figures
from bench.results.results import CellView
from bench.runs.verify.files import read_rows

LEVEL = 1e-4
"""How probable it is at most that an honest run is called shifted."""
FEWEST = ceil(log2(2 / LEVEL))
"""With fewer cells whose numbers differ, no shift can be told from rounding at that level."""
ENOUGH = 20
"""With so many a shift by a point is seen in most runs (docs/lab-notes.md has the table)."""
STABLE = 1e-3
"""Largest relative difference of losses with which both paths have trained the same models but for rounding."""

_FLIPS, _BLOCK = 2**17, 2**12
_TRAFFIC = ("up", "down_distinct", "down_receivers")


@dataclass(frozen=True)
class Shift:
    """A figure that is shifted in a run.

    Attributes:
        name: name of the figure.
        mean: mean difference of the run's numbers above those computed here, in points (hundredths) or in percent.
        cells: number of cells that have other numbers of it here.
        p: probability of differences that are so one-sided if each could as well have the other sign.
    """

    name: str
    mean: float
    cells: int
    p: float

    @property
    def text(self) -> str:
        """The shift in words, e.g. `pm accuracy (local, equal) +2.31 points in 17 cells (p = 2e-05)`."""
        unit = "points" if self.name.endswith(")") else "%"
        return f"{self.name} {self.mean:+.2f} {unit}, mean of {self.cells} cells (p = {self.p:.1g})"


def differences(old: CellView, new: CellView) -> dict[str, float]:
    """Measure how far the numbers of a cell lie above those of the same cell computed here, by figure.

    Returns:
        Reported accuracies and further scores in points (hundredths); test losses, bytes and simulated seconds in
        percent (100 times the logarithm of the ratio, mean over rows). Losses and further scores that only rounding
        moved are 0, as a kernel may round up more often than down. A derived metric is another's, and has none.
    """
    points = _points(old, new, "accuracy")
    for quantity in further_scores([old]):
        if quantity in further_scores([new]):
            apart = _points(old, new, quantity)
            points |= {name: value if abs(value) > 100 * STABLE else 0.0 for name, value in apart.items()}
    logs: dict[str, list[float]] = defaultdict(list)
    for name, first, second in _pairs(old, new):
        if first > 0 and second > 0:
            logs[name].append(100 * log(first / second))
    means = {name: float(np.mean(values)) for name, values in logs.items()}
    return points | {
        name: value if abs(value) > 100 * STABLE or "loss" not in name else 0.0 for name, value in means.items()
    }


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
    if len(table) < FEWEST:
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


def _points(old: CellView, new: CellView, quantity: str) -> dict[str, float]:
    """Differences of a reported score, by figure, in points; of a score above 1 as a share of it."""
    here = {_figure(figure, quantity): figure["value"] for figure in reported_figures(new, quantity)}
    both = [
        (name, figure["value"], here[name])
        for figure in reported_figures(old, quantity)
        if not figure["derived"] and (name := _figure(figure, quantity)) in here
    ]
    apart = {name: 100 * (first - other) / max(1.0, abs(first), abs(other)) for name, first, other in both}
    return {name: value for name, value in apart.items() if not isnan(value)}


def _figure(figure: dict[str, Any], quantity: str) -> str:
    mean = f", {figure['mean']}" if figure["mean"] else ""
    return f"{figure['metric']} {quantity} ({figure['on']}{mean})"


def _pairs(old: CellView, new: CellView) -> Iterator[tuple[str, float, float]]:
    """Pairs of the two cells' numbers, each with its name: losses by metric, bytes, seconds."""
    for row, other in _rows(old.folder, new.folder, "metrics"):
        if (row["quantity"], row["split"]) == ("loss", "test") and row["metric"] not in old.status.derived:
            yield f"{row['metric']} loss", float(row["value"]), float(other["value"])
    for row, other in _rows(old.folder, new.folder, "ledger"):
        yield "bytes", _bytes(row), _bytes(other)
        yield "seconds", float(row["seconds"]), float(other["seconds"])


def _bytes(row: dict[str, str]) -> float:
    return sum(float(row[name]) for name in _TRAFFIC)


def _rows(old: Path, new: Path, name: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    yield from zip(read_rows(old, name), read_rows(new, name), strict=False)


def _signed_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks of the absolute values with their signs, zeros 0, of length 1."""
    from scipy.stats import rankdata

    ranks = np.sign(values) * np.asarray(rankdata(np.abs(values)), float)
    length = float(np.linalg.norm(ranks))
    return np.asarray(ranks / length if length else ranks)
