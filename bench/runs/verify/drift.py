"""Whether numbers that another computer computed differ from those computed here as by rounding (docs/verify.md).

Where training drifts apart, one cell says nothing: an honest accuracy may be ten points off. But neither of two
computers rounds in favour of a method, so over several cells the differences are as often up as down, and as far.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log, log2
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.results.results import CellView, reported_figures
from bench.runs.verify.consistency import read_rows

LEVEL = 1e-4
"""How probable it is at most that an honest run is called shifted."""
FEWEST = ceil(log2(2 / LEVEL))
"""With fewer cells whose numbers differ, no shift can be told from rounding at that level."""
ENOUGH = 20
"""With so many a shift by a point is seen in most runs (docs/verify.md has the table)."""
STABLE = 1e-3
"""Largest relative difference of losses with which both paths have trained the same models but for rounding."""

_FLIPS, _BLOCK = 2**17, 2**12
_ROWS, _SPREAD = 4, 0.01
_TRAFFIC = ("up", "down_distinct", "down_receivers")


@dataclass(frozen=True)
class Shift:
    """What is shifted in a run.

    Attributes:
        name: of the figure.
        mean: of the run's numbers above those computed here, in points of accuracy or in percent.
        cells: how many cells have other numbers of it here.
        p: how often the differences would be so one-sided if each could as well have the other sign.
    """

    name: str
    mean: float
    cells: int
    p: float

    @property
    def text(self) -> str:
        """E.g. `pm accuracy (local, equal) +2.31 points in 17 cells (p = 2e-05)`."""
        unit = "points" if "accuracy" in self.name else "%"
        return f"{self.name} {self.mean:+.2f} {unit}, mean of {self.cells} cells (p = {self.p:.1g})"


def differences(old: CellView, new: CellView) -> dict[str, float]:
    """How far the numbers of a cell lie above those of the same cell computed here, by figure.

    Returns:
        Reported accuracies in points; test losses, bytes and simulated seconds in percent (100 times the logarithm of
        the ratio, mean over rows; 0 for losses that only rounding moved, as a kernel may round up more often than
        down). A derived metric is another's, and has none.
    """
    here = {_figure(one): one["value"] for one in reported_figures(new)}
    points = {
        _figure(one): 100 * (one["value"] - here[_figure(one)])
        for one in reported_figures(old)
        if not one["derived"] and _figure(one) in here
    }
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
    names = sorted({name for one in cells for name in one})
    found = np.array([[one.get(name, 0.0) for name in names] for one in cells]).reshape(len(cells), len(names))
    found = np.where(np.abs(found) > 1e-9, found, 0.0)  # a mean's last digit may depend on the CPU
    found = found[found.any(axis=1)]
    if len(found) < FEWEST:
        return None
    ranks = np.column_stack([_signed_ranks(column) for column in found.T])
    sums = np.abs(ranks.sum(axis=0))
    ways, often = min(2 ** len(found), _FLIPS), 0
    for signs in _signs(len(found)):
        often += int((np.abs(signs @ ranks).max(axis=1) >= sums.max() - 1e-9).sum())
        if often > LEVEL * ways:
            return None
    p = max(often, 1) / ways
    worst = int(sums.argmax())
    moved = found[:, worst][found[:, worst] != 0]
    return Shift(names[worst], float(moved.mean()), len(moved), p)


def scaled(old: Path, new: Path) -> str | None:
    """Return which losses of a cell that drifted are those computed here times one factor, or None."""
    for name, logs in loss_factors(old, new).items():
        if spread(logs) < _SPREAD:
            return f"the losses of {name} are those computed here times {np.exp(logs.mean()):.4f}, in all rounds"
    return None


def loss_factors(old: Path, new: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Logarithms of the factors by which the losses of a model and split are off, where there are four or more and one
    drifted."""
    groups: dict[str, dict[float, float]] = defaultdict(dict)
    for one, other in _rows(old, new, "metrics"):
        first, second = float(one["value"]), float(other["value"])
        if one["quantity"] == "loss" and first > 0 and second > 0:
            groups[f"{one['metric']} ({one['split']})"][first] = log(first / second)
    logs = {name: np.array(list(found.values())) for name, found in groups.items()}
    return {name: found for name, found in logs.items() if len(found) >= _ROWS and np.abs(found).max() > STABLE}


def spread(logs: npt.NDArray[np.float64]) -> float:
    """Standard deviation, as a share of the largest: of a drifted training each round and mean is off by another
    factor, and in the cells measured it was never below a tenth (docs/verify.md)."""
    return float(logs.std() / np.abs(logs).max())


def _figure(figure: dict[str, Any]) -> str:
    mean = f", {figure['mean']}" if figure["mean"] else ""
    return f"{figure['metric']} accuracy ({figure['on']}{mean})"


def _pairs(old: CellView, new: CellView) -> Iterator[tuple[str, float, float]]:
    """Numbers of both by what they are: losses by metric, bytes, seconds."""
    for one, other in _rows(old.folder, new.folder, "metrics"):
        if (one["quantity"], one["split"]) == ("loss", "test") and one["metric"] not in old.status.derived:
            yield f"{one['metric']} loss", float(one["value"]), float(other["value"])
    for one, other in _rows(old.folder, new.folder, "ledger"):
        yield "bytes", _bytes(one), _bytes(other)
        yield "seconds", float(one["seconds"]), float(other["seconds"])


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


def _signs(cells: int) -> Iterator[npt.NDArray[np.floating[Any]]]:
    """Blocks of equal size of ways to flip the signs of some cells: all ways, or many random ones."""
    if 2**cells <= _FLIPS:
        yield 1.0 - 2.0 * ((np.arange(2**cells)[:, None] >> np.arange(cells)) & 1)
        return
    rng = np.random.default_rng(0)
    for _ in range(_FLIPS // _BLOCK):
        yield 1.0 - 2.0 * rng.integers(2, size=(_BLOCK, cells), dtype=np.int8)
