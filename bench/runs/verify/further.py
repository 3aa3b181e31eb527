"""Scores of a cell beside accuracies and losses of its tests, compared with those of the same cell computed again.

These are further scores, scores on earlier and later data (`changes.csv`), and the rows that `bench evaluate` added.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.plugin import METRICS
from bench.results.results import CellView
from bench.runs.verify.consistency import read_rows
from bench.runs.verify.evaluated import added_rows
from bench.store.data_record import record_of
from bench.store.documents import read_json
from bench.store.store import FURTHER

_TOLERANCE, _WEIGHT, _CLASSES = 0.01, 3, 2
"""How far rounding alone may move a score: by 0.01, and for each sample that is classified otherwise as three samples
or as two whole classes, whatever is more (the only sample of a rare class is its whole recall)."""

_Row = dict[str, str]


@dataclass(frozen=True)
class Pair:
    """A row of the run and the value computed here.

    Attributes:
        place: file and line.
        row: the row of the run.
        here: the value here; None: no such row.
        moved: whether a model of another round was scored here, so that the values say nothing.
    """

    place: str
    row: _Row
    here: float | None
    moved: bool = False

    @property
    def close(self) -> bool:
        """Whether both values are the same but for the order of sums."""
        return self.here is not None and bool(
            np.isclose(float(self.row["value"]), self.here, rtol=1e-9, atol=1e-9, equal_nan=True)
        )

    @property
    def apart(self) -> float:
        """The distance between the values, as a share of those above 1; infinite where only one is defined."""
        first, here = float(self.row["value"]), np.nan if self.here is None else self.here
        if np.isnan(first) or np.isnan(here):
            return 0.0 if np.isnan(first) and np.isnan(here) else np.inf
        return float(abs(first - here) / max(1.0, abs(first), abs(here)))

    @property
    def text(self) -> str:
        """The row and both values."""
        return f"{self.place}: {','.join(self.row.values())} in the run, {self.here} here"


def other_score(cell: CellView, folder: Path, *, values: bool = True) -> str:
    """Describe the first further score of the run that is another here; empty where all are the same.

    A cell that was resumed with other `metrics` has some scores of some rounds only. Scores that are not known here
    are not compared.

    Args:
        cell: the finished cell.
        folder: the same cell computed again.
        values: whether values count, and rounds of added rows, or only whether there is such a row.
    """
    for pair in pairs(cell, folder):
        if pair.here is None or (values and (pair.moved or not pair.close)):
            return pair.text
    return ""


def beyond_rounding(cell: CellView, folder: Path, apart: int) -> str:
    """Describe the first further score that differs by more than rounding can move it; empty where none does.

    Means and scores of all samples move a little, and no more clients than samples that may be classified otherwise
    (`allowed_flips`) have a score that moves further.

    Args:
        cell: the finished cell.
        folder: the same cell computed again.
        apart: how many samples of the cell's own tests were classified otherwise; of others it is not known.
    """
    record = read_json(cell.folder / "partition.json")
    clients: Counter[tuple[str, ...]] = Counter()
    for pair in pairs(cell, folder):
        row = pair.row
        of_round = record_of(record, int(row["round"]))
        samples = sum(of_round[f"n_{row['split'] if row['split'] == 'validation' else 'test'}"])
        samples = samples or of_round["n_global_test"]
        of_a_sample = max(_WEIGHT / max(samples, 1), _CLASSES / len(of_round["counts"][0]))
        possible = apart * of_a_sample
        if not pair.place.startswith(FURTHER):
            possible = max(possible, allowed_flips(samples) * _WEIGHT / max(samples, 1))
        if pair.moved or pair.apart <= _TOLERANCE + possible:
            continue
        group = tuple(row.get(key, "") for key in ("round", "stage", "metric", "on", "split", "quantity"))
        clients[group] += 1
        if row.get("client", "-1") == "-1" or clients[group] > allowed_flips(samples):
            return pair.text
    return ""


def allowed_flips(samples: int) -> int:
    """Number of samples that the same models may classify otherwise because of rounding."""
    return 1 + samples // 150


def pairs(cell: CellView, folder: Path) -> Iterator[Pair]:
    """Rows of the run whose score is known here, each with the value in `folder`."""
    known = METRICS.names()
    for name in (*FURTHER, "changes"):
        if not all((of / f"{name}.csv").exists() for of in (cell.folder, folder)):
            continue
        here = {_key(row): float(row["value"]) for row in read_rows(folder, name)}
        for line, row in enumerate(read_rows(cell.folder, name), start=2):
            if row["quantity"] in known:
                yield Pair(f"{name}.csv, line {line}", row, here.get(_key(row)))
    for place, row, value, moved in added_rows(cell, folder):
        yield Pair(place, row, value, moved)


def _key(row: _Row) -> tuple[str, ...]:
    return tuple(value for column, value in row.items() if column != "value")
