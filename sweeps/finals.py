"""Further runs of the best few trials, on seeds that no trial had, before one setting of a method is chosen.

The best of thirty noisy figures is mostly a lucky one. Further seeds for the three best trials cost little and are the
same for every method; the mean over all seeds decides.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition
from bench.settings import Settings
from bench.store import store
from sweeps.cells import Finder, trial_ids
from sweeps.run import best_value, mean_curve
from sweeps.study import FINALISTS, Arm, Study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def finalists(trials: "Sequence[FrozenTrial]") -> "list[FrozenTrial]":
    """The best complete trials of different settings, best first; of equals the earlier one."""
    from optuna.trial import TrialState

    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    ordered = sorted(complete, key=lambda trial: (-sum(trial.values), trial.number))
    different = {str(sorted(trial.params.items())): trial for trial in reversed(ordered)}
    return [trial for trial in ordered if trial in different.values()][:FINALISTS]


def final_cells(arm: Arm, trial: "FrozenTrial") -> list[Settings]:
    """A finalist's cells on the further tuning seeds."""
    first = arm.trial(trial.number, trial.params)[0]
    return [first.model_copy(update={"seed": seed}) for seed in arm.final_seeds]


def final_values(study: Study, arm: Arm, trial: "FrozenTrial", folder: Path, find: Finder) -> list[float] | None:
    """Validation scores over all tuning seeds, one per objective; None while a cell is not done, or diverged.

    Args:
        study, arm, trial: what was tuned, and one of its best trials.
        folder: the run's.
        find: gives the ids of cells.
    """
    again = final_cells(arm, trial)
    further = [find(cell) for cell in again]
    if None in further:
        return None
    cells = [*arm.trial(trial.number, trial.params), *again]
    folders = [folder / id for id in (*trial_ids(arm, trial), *filter(None, further))]
    if any(store.read_status(at, cell).state != "done" for at, cell in zip(folders, cells, strict=True)):
        return None
    curves = [mean_curve(folders, metric, cells[0]) for metric in study.metrics]
    return None if not all(curves) else [best_value(curve) for curve in curves]


def check_blind(study: Study, data_root: Path) -> None:
    """Check that no trial trains or validates on a sample that the report tests, whatever the partition.

    Raises:
        UserError: a partition draws its tests anew for each seed.
    """
    tuning = [*study.file.seeds, *study.final_seeds]
    for arm in {arm.task: arm for arm in study.arms}.values():
        cell = arm.cells[0]
        dataset = load_dataset(cell, data_root)
        seen = np.zeros(len(dataset.y), bool)
        for seed in tuning:
            trial = load_partition(cell.model_copy(update={"seed": seed}), dataset)
            seen[np.concatenate([*trial.train, *trial.validation])] = True
        for reported in arm.reported({}, study.file.report_seeds):
            partition = load_partition(reported, dataset)
            overlap = int(seen[np.unique(np.concatenate([*partition.test, partition.global_test]))].sum())
            if overlap:
                raise UserError(
                    f"{arm.task}: trials would train on {overlap} samples that seed {reported.seed} is tested on; the "
                    f"partition {cell.partition!r} should take `fixed_tests` (docs/data.md, Your own)"
                )
