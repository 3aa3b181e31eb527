"""Check that the results of a run can be computed again (docs/verify.md).

Three things are checked: that a cell's id follows from its settings, its data and the present code; that its tables
have not changed since it finished; and, for cells drawn at random, that computing them again gives the same tables. On
the same recorded path the bytes must be equal. On another path sums are rounded differently and training drifts apart:
then all counts must be equal (partition, bytes sent, steps), and accuracies must be close.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bench.errors import UserError
from bench.runs.crew import Crew
from bench.runs.launch import work
from bench.runs.plan import PlannedCell, plan
from bench.runs.results import CellView, RunView
from bench.runs.store import FINISHED, read_json, read_status
from bench.runs.tables import read_table
from bench.settings import Settings

COUNTED = ("ledger", "work")
TOLERANCE = 0.05
"""Largest difference of an accuracy (0 .. 1, mean over rounds) that is accepted on another path."""


@dataclass(frozen=True)
class CellVerdict:
    """The result for one cell; `text` explains it in one line."""

    cell: CellView
    ok: bool
    text: str


@dataclass(frozen=True)
class Checked:
    """The result of a verification: a verdict for each cell that failed or was computed again.

    Attributes:
        stopped: whether the user stopped it.
    """

    verdicts: tuple[CellVerdict, ...]
    stopped: bool = False

    @property
    def ok(self) -> bool:
        """Whether every check was made and none failed."""
        return not self.stopped and all(verdict.ok for verdict in self.verdicts)


def verify(
    runs: Sequence[RunView], count: int, seed: int, scratch: Path, options: str, crew: Crew, data_root: Path
) -> Checked:
    """Check ids and tables of all finished cells, and compute `count` of the cells again.

    Args:
        runs: what to verify.
        count: number of cells drawn from all runs together; all cells if there are fewer.
        seed: seed of this draw.
        scratch: an empty folder for the new cells.
        options: JSON of `bench.runs.cell.Options`.
        crew: the workers that compute them.
        data_root: folder of the data files.

    Raises:
        UserError: no cell has finished, or data is missing.
    """
    cells = list({cell.folder: cell for run in runs for cell in run.cells}.values())
    finished = [cell for cell in cells if cell.status.state in FINISHED]
    damaged = [CellVerdict(cell, False, cell.status.reason) for cell in cells if _damaged(cell)]
    if not finished and not damaged:
        names = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{names}: no cell has finished, so there is nothing to verify")
    here = plan([cell.settings for cell in finished], data_root, download=False)
    strange = [verdict for pair in zip(finished, here, strict=True) if (verdict := _identity(*pair))]
    doubted = {verdict.cell.folder for verdict in strange}
    sound = [(cell, mine) for cell, mine in zip(finished, here, strict=True) if cell.folder not in doubted]
    order = np.random.default_rng(seed).permutation(len(sound))[:count]
    drawn = [sound[index] for index in sorted(order)]
    different = list({mine.id: mine for _, mine in drawn}.values())
    completed = work(scratch, different, options, crew, None, quiet=True, verbose=False)
    again = [_compare(cell, scratch / mine.id) for cell, mine in drawn] if completed else []
    return Checked((*damaged, *strange, *again), stopped=not completed)


def _damaged(cell: CellView) -> bool:
    """Return whether a cell that had finished was damaged or changed since."""
    return cell.status.state == "interrupted" and bool(cell.status.checksums or cell.status.reason.startswith("status"))


def _identity(cell: CellView, here: PlannedCell) -> CellVerdict | None:
    """Return what is wrong with a cell's settings or id, or None."""
    if Settings(**read_json(cell.folder / "settings.json")) != cell.settings:
        return CellVerdict(cell, False, "its settings.json is not what run.json says of it")
    if here.id != cell.id:
        text = (
            f"its id would be {here.id} here: the method's code, the data or the settings are not those it was run with"
        )
        return CellVerdict(cell, False, text)
    return None


def _compare(cell: CellView, folder: Path) -> CellVerdict:
    """Compare a cell with the same cell computed again in `folder`."""
    new = read_status(folder)
    if new.state != cell.status.state:
        return CellVerdict(cell, False, f"{cell.status.state} in the run, {new.state} here. {new.reason}".rstrip())
    if new.partition != cell.status.partition or not _same(cell.folder, folder, "partition.json"):
        return CellVerdict(cell, False, "its partition is not the one that its settings make here")
    if new.path == cell.status.path:
        wrong = [name for name in ("metrics", "clients", *COUNTED) if not _same(cell.folder, folder, f"{name}.csv")]
        if wrong:
            return CellVerdict(cell, False, f"other numbers on the same path: {_difference(cell, folder, wrong[0])}")
        return CellVerdict(cell, True, "the same bytes")
    wrong = [name for name in COUNTED if not _same(cell.folder, folder, f"{name}.csv")]
    if wrong:
        return CellVerdict(cell, False, f"another count: {_difference(cell, folder, wrong[0])}")
    gap, paths = _gap(cell, folder), _paths(cell.status.path, new.path)
    return CellVerdict(cell, gap <= TOLERANCE, f"{100 * gap:.2f} points apart at most, on another path ({paths})")


def _same(old: Path, new: Path, name: str) -> bool:
    """Return whether both folders have the file with the same content, or neither has it."""
    contents = [path.read_bytes() if path.exists() else None for path in (old / name, new / name)]
    return contents[0] == contents[1]


def _difference(cell: CellView, folder: Path, name: str) -> str:
    """Describe the first line in which a table differs."""
    texts = [
        path.read_text(encoding="utf-8").splitlines() for path in (cell.folder / f"{name}.csv", folder / f"{name}.csv")
    ]
    for number, (old, new) in enumerate(zip(*texts, strict=False), start=1):
        if old != new:
            return f"{name}.csv, line {number}: {old} in the run, {new} here"
    return f"{name}.csv: {len(texts[0])} lines in the run, {len(texts[1])} here"


def _gap(cell: CellView, folder: Path) -> float:
    """Return the largest difference between accuracies, each averaged over rounds."""
    keys = ["metric", "on", "mean", "split"]
    means = [
        _accuracies(table).groupby(keys)["value"].mean()
        for table in (cell.table("metrics"), read_table(folder, "metrics"))
    ]
    return float((means[0] - means[1]).abs().fillna(1.0).max())


def _accuracies(metrics: pd.DataFrame) -> pd.DataFrame:
    return metrics[metrics["quantity"] == "accuracy"]


def _paths(old: dict[str, object], new: dict[str, object]) -> str:
    keys: Sequence[str] = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in keys)
