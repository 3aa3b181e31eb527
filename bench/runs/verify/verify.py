"""Check that the results of a run can be computed again (docs/verify.md).

Of all cells the id must follow from the settings, the data and the present code, and the files must agree with each
other and with the partition that the settings make. Of cells drawn at random the numbers are computed again.
"""

import csv
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import UserError
from bench.plugin import METRICS
from bench.results.results import CellView, RunView
from bench.runs.cell_options import Options
from bench.runs.cell_runner import CellRunner
from bench.runs.plan import PlannedCell, plan
from bench.runs.session import work
from bench.runs.verify.drift import Shift, shift
from bench.runs.verify.files import disagreement
from bench.runs.verify.recomputed import CellVerdict, compare, evaluated_tests, scores_of
from bench.settings import PRESENTATION, RECORDED, FurtherTest, Settings
from bench.store.documents import read_json
from bench.store.store import FINISHED, is_unsound

if TYPE_CHECKING:
    from bench.runs.verify.judge import Judge

WITNESSES = 2
"""Cells of other seeds that are computed again for each one that has other numbers on another path."""

_Pair = tuple[CellView, PlannedCell]


@dataclass(frozen=True)
class Checked:
    """The result of a verification: a verdict for each cell that failed or was computed again.

    Attributes:
        stopped: whether the user stopped it.
        shifts: by run folder, a figure that lies above or below the ones computed here as rounding cannot explain.
        seed: of the draw of cells.
        cells: how many cells the runs have.
        unchecked: how many cells have an id that was not checked, as it rests on code of plug-ins.
        names: what the user calls each run folder; a packed run was unpacked into another one.
        notes: by run folder, what a reader of its results should know.
    """

    verdicts: tuple[CellVerdict, ...]
    stopped: bool = False
    shifts: dict[Path, Shift] = field(default_factory=dict)
    seed: int = 0
    cells: int = 0
    unchecked: int = 0
    names: dict[Path, Path] = field(default_factory=dict)
    notes: dict[Path, str] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether a check failed."""
        return bool(self.shifts) or any(verdict.outcome == "wrong" for verdict in self.verdicts)

    @property
    def unconfirmed(self) -> list[Path]:
        """Folders of runs of which cells were computed again, and none came out the same, or but for rounding."""
        outcomes = {run: {verdict.outcome for verdict in verdicts} for run, verdicts in by_run(self.verdicts).items()}
        return [run for run, seen in outcomes.items() if "drifted" in seen and not seen & {"same", "near"}]

    @property
    def ok(self) -> bool:
        """Whether every check was made, none failed, and no run is left unconfirmed."""
        return not (self.stopped or self.wrong or self.unconfirmed)


def discovery(cells: int, forged: int, drawn: int) -> float:
    """Probability that a draw of cells meets a forged one, if whoever forged did not know the draw.

    Args:
        cells: how many there are.
        forged: how many of them are forged.
        drawn: how many different ones are drawn; all if there are fewer.
    """
    return 1 - math.comb(cells - forged, min(drawn, cells)) / math.comb(cells, min(drawn, cells))


def by_run(verdicts: Sequence[CellVerdict]) -> dict[Path, list[CellVerdict]]:
    """The verdicts of each run folder."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.cell.folder.parent)
    return {run: list(group) for run, group in groupby(ordered, key=lambda verdict: verdict.cell.folder.parent)}


def verify(
    runs: Sequence[RunView],
    count: int,
    seed: int,
    scratch: Path,
    options: Options,
    runner: CellRunner,
    data_root: Path,
    judge: "Judge | None" = None,
) -> Checked:
    """Check ids and tables of all finished cells, and compute `count` of the cells again.

    Args:
        runs: the runs to verify.
        count: number of cells drawn from all runs together; all cells if there are fewer.
        seed: seed of this draw.
        scratch: an empty folder for the new cells.
        options: how they are run.
        runner: computes the cells.
        data_root: folder of the data files.
        judge: scores the new cells in place of the processes that train them, which have `blind` among their options.

    Raises:
        UserError: no cell has finished, data is missing, or the judge cannot have them.
    """
    failed, sound = check_files(runs, data_root, judge)
    order = np.random.default_rng(seed).permutation(len(sound)).tolist()
    drawn = [sound[index] for index in sorted(order[:count])]
    recomputed: dict[Path, CellVerdict] = {}

    def compute(pairs: Sequence[_Pair]) -> bool:
        """Compute cells again, compare, and say whether it came to its end."""
        different = _scored_alike(pairs)
        if judge:
            judge.hand_out(scratch, different)
        if not work(scratch, different, options, runner):
            return False
        folders = {planned.id: scratch / planned.id for planned in different}
        if judge:
            folders = {planned.id: judge.score(planned, folders[planned.id]) for planned in different}
        recomputed.update((cell.folder, compare(cell, folders[planned.id])) for cell, planned in pairs)
        return True

    completed = compute(drawn) and compute(_witnesses(recomputed, [sound[index] for index in order]))
    again = [_beside_other_seeds(verdict, recomputed.values()) for verdict in recomputed.values()]
    shifts = {run: shift([verdict.apart for verdict in verdicts]) for run, verdicts in by_run(again).items()}
    notes = {run.path: note for run in runs if (note := unlike_rounds(run))}
    anomalies = {run: anomaly for run, anomaly in shifts.items() if anomaly}
    return Checked((*failed, *again), not completed, anomalies, notes=notes)


def _scored_alike(pairs: Sequence[_Pair]) -> list[PlannedCell]:
    """The cells to compute, each once, with all the scores and tests that some run has of it and are known here."""
    names: dict[str, set[str]] = {}
    tests: dict[str, dict[tuple[str, ...], FurtherTest]] = {}
    for cell, planned in pairs:
        names.setdefault(planned.id, set()).update(scores_of(cell).intersection(METRICS.names()))
        tests.setdefault(planned.id, {}).update({test.labels: test for test in evaluated_tests(cell)})
    different = []
    for id, planned in {planned.id: planned for _, planned in pairs}.items():
        chosen = planned.settings.select_by
        scoring = {
            "metrics": tuple(sorted(names[id])),
            "select_by": chosen if chosen in {*RECORDED, *names[id]} else "accuracy",
            "tests": tuple(tests[id].values()),
        }
        different.append(replace(planned, settings=planned.settings.model_copy(update=scoring)))
    return different


def check_files(
    runs: Sequence[RunView], data_root: Path, judge: "Judge | None" = None
) -> tuple[list[CellVerdict], list[tuple[CellView, PlannedCell]]]:
    """Check ids, partitions and tables of all finished cells; nothing is computed again.

    Args:
        runs, data_root, judge: as in `verify`.

    Returns:
        A verdict for each cell that is wrong, and the other finished cells, each as it would be planned here.

    Raises:
        UserError: no cell has finished, data is missing, or the judge cannot have them.
    """
    views = [cell for run in runs for cell in run.cells]
    cells = list({cell.folder: cell for cell in views}.values())
    wrong = {cell.folder: cell.status.reason for cell in cells if is_unsound(cell.status)}
    wrong |= {cell.folder: _misnamed(cell) for cell in views if cell.label != cell.settings.name}
    finished = [cell for cell in cells if cell.folder not in wrong and cell.status.state in FINISHED]
    if not finished and not wrong:
        names = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{names}: no cell has finished, so there is nothing to verify")
    plans = judge.plan(finished) if judge else plan([cell.settings for cell in finished], data_root, download=False)
    pairs = list(zip(finished, plans, strict=True))
    wrong |= {cell.folder: fault for cell, planned in pairs if (fault := _fault(cell, planned))}
    wrong |= _copies([cell for cell in finished if cell.folder not in wrong])
    failed = [CellVerdict(cell, "wrong", wrong[cell.folder]) for cell in cells if cell.folder in wrong]
    return failed, [pair for pair in pairs if pair[0].folder not in wrong]


def _copies(cells: Sequence[CellView]) -> dict[Path, str]:
    """Find cells that have all the numbers of another seed's, and say so, by folder."""
    first: dict[tuple[object, ...], CellView] = {}
    copies = {}
    for cell in cells:
        sums = cell.status.checksums.get("metrics"), cell.status.checksums.get("clients")
        other = first.setdefault((cell.folder.parent, cell.status.state, *sums), cell)
        if cell.status.state == "done" and _same_but_seed(cell, other):
            copies[cell.folder] = f"metrics.csv and clients.csv are the same as of seed {other.settings.seed}"
    return copies


def _misnamed(cell: CellView) -> str:
    """The reason why a cell is wrong that tables would show under another name."""
    return f"run.json labels it {cell.label!r}, and its settings there are of {cell.settings.name!r}"


def unlike_rounds(run: RunView) -> str:
    """Say which scores choose the reported rounds where these are not the same in all cells; empty where they are.

    No id depends on them, so whoever edits `run.json` can choose them by method.
    """
    labels: dict[str, dict[str, None]] = {}
    for cell in run.cells:
        labels.setdefault(cell.settings.select_by, {})[cell.label] = None
    texts = [f"{name} in cells of {', '.join(of)}" for name, of in labels.items()]
    return f"the reported rounds are not chosen alike: by {'; by '.join(texts)}" if len(texts) > 1 else ""


def _fault(cell: CellView, planned: PlannedCell) -> str | None:
    """Return what is wrong with a cell's files, or None; edited ones may hold anything."""
    try:
        stored = Settings(**(read_json(cell.folder / "settings.json") or {}))
        if stored.model_dump(exclude=set(PRESENTATION)) != cell.settings.model_dump(exclude=set(PRESENTATION)):
            return "its settings.json is not what run.json says of it"
        if planned.id != cell.id:
            return (
                f"its id would be {planned.id} here: the method's code, the data or the settings are not those it was "
                "run with"
            )
        record = json.loads(json.dumps(planned.record))
        if cell.status.partition != {key: record[key] for key in ("hash", "summary")}:
            return "status.json: its partition is not the one that its settings make here"
        if read_json(cell.folder / "partition.json") != record:
            return "partition.json: its partition is not the one that its settings make here"
        return disagreement(cell)
    except (UserError, csv.Error, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"its files are not what a cell writes ({type(error).__name__}: {error})"


def _witnesses(recomputed: dict[Path, CellVerdict], others: Sequence[_Pair]) -> list[_Pair]:
    """Choose cells of other seeds for each cell that has other numbers: they show whether all cells have."""
    chosen: dict[Path, _Pair] = {}
    for verdict in recomputed.values():
        if verdict.outcome in ("near", "drifted"):
            alike = [pair for pair in others if _differ_by_seed(verdict.cell, pair[0])]
            alike.sort(key=lambda pair: pair[0].folder not in recomputed.keys() | chosen.keys())
            chosen.update((pair[0].folder, pair) for pair in alike[:WITNESSES])
    return [pair for folder, pair in chosen.items() if folder not in recomputed]


def _differ_by_seed(first: CellView, other: CellView) -> bool:
    """Whether two cells of a run have the same path, and the same settings but for the seed."""
    return (
        first.folder.parent == other.folder.parent
        and first.status.path == other.status.path
        and _same_but_seed(first, other)
    )


def _same_but_seed(first: CellView, other: CellView) -> bool:
    seed = first.settings.seed
    return seed != other.settings.seed and first.settings == other.settings.model_copy(update={"seed": seed})


def _beside_other_seeds(verdict: CellVerdict, recomputed: Collection[CellVerdict]) -> CellVerdict:
    """Judge a cell that was computed again beside the others that were.

    Other numbers on another path are sound where that path computes other numbers: then every cell has others. Where a
    cell of another seed, with the same shapes and kernels, has the same numbers, this one should have them too.
    """
    others = [other.outcome for other in recomputed if _differ_by_seed(verdict.cell, other.cell)]
    if verdict.outcome not in ("near", "drifted") or "same" not in others:
        return verdict
    count = f"{others.count('same')} of {len(others)} cells of other seeds"
    text = f"looks edited, for {count} have the same numbers here and it has not: {verdict.text}"
    return CellVerdict(verdict.cell, "wrong", text)
