"""The settings that a study chose for each method, and its fairness: budgets, ranges, settings at an edge.

The best of thirty noisy figures is mostly a lucky one. So the best three trials of a method run again on further seeds,
which no trial had and which are the same for every method; the mean over all seeds decides.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition
from bench.settings import Settings
from bench.store import store
from reports.tables.table import Column, Table, TableEntry, amount, number, words
from sweeps.cells import Finder, listed_ids, trial_ids
from sweeps.run import STARTUP_TRIALS, best_value, mean_curve
from sweeps.space import is_number
from sweeps.study import FINALISTS, Arm, Study, values_text

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Chosen:
    """The setting chosen for one arm.

    Attributes:
        arm: the method and its task.
        trials: all that have ended, by number.
        best: of the finalists that ran again, the one with the best validation accuracy over all tuning seeds; before
            they have, the best trial. Of a Pareto front, the one with the best mean of both. None: no trial came to its
            end.
        counts: trials by state. Those that are running, or that failed and wait for the next command, are `running`.
        finals: by number of a finalist that ran again, its validation accuracies over all tuning seeds.
        rounds, hours: of training and of one worker's wall time, for the trials and the finalists' further runs.
    """

    arm: Arm
    trials: "tuple[FrozenTrial, ...]"
    best: "FrozenTrial | None"
    counts: dict[str, int]
    finals: dict[int, list[float]] = field(default_factory=dict)
    rounds: int = 0
    hours: float = 0.0

    @property
    def at_edge(self) -> list[str]:
        """Searched settings whose chosen value lies at an end of its range."""
        if self.best is None:
            return []
        return [
            dimension.name for dimension in self.arm.dimensions if dimension.at_edge(self.best.params[dimension.key])
        ]


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


def choose(study: Study, studies: "dict[str, optuna.Study]", folder: Path, find: Finder | None = None) -> list[Chosen]:
    """Choose a setting for each arm, from the trials and, where they are done, the finalists' further runs.

    Args:
        study, studies: what was tuned, and the result of `sweeps.run.open_studies`.
        folder: the run's.
        find: gives the ids of cells; None: `run.json` has them (`sweeps.cells.listed_ids`).
    """
    from optuna.trial import TrialState

    choices, find = [], find or listed_ids(folder)
    for arm in study.arms:
        trials = studies[arm.name].get_trials(deepcopy=False)
        ended = tuple(trial for trial in trials if trial.state.is_finished())
        best = finalists(ended)
        further = [cell for trial in best for cell in final_cells(arm, trial)]
        again = best if further else []
        values = {trial.number: final_values(study, arm, trial, folder, find) for trial in again}
        finals = {number: figures for number, figures in values.items() if figures is not None}
        if finals:
            best = [trial for trial in best if trial.number in finals]
            best.sort(key=lambda trial: -sum(finals[trial.number]))
        counts = Counter(trial.state.name.lower() for trial in trials if trial.state != TrialState.WAITING)
        ids = {id for trial in trials for id in trial_ids(arm, trial)}
        spent = _spent([folder / id for id in (*ids, *filter(None, map(find, further)))])
        choices.append(Chosen(arm, ended, best[0] if best else None, dict(counts), finals, *spent))
    return choices


def further_cells(choices: Sequence[Chosen]) -> list[Settings]:
    """The further runs of all finalists; none where the study has no seeds for them."""
    return [cell for choice in choices for trial in finalists(choice.trials) for cell in final_cells(choice.arm, trial)]


def chosen_cells(choices: Sequence[Chosen]) -> list[Settings]:
    """The chosen settings on their reporting seeds, of each method on the tasks on which every draw chose one.

    The other draws of a task would show the method with its luck alone.
    """
    left_out = {(choice.arm.label, choice.arm.task) for choice in choices if choice.best is None}
    return [
        cell
        for choice in choices
        if choice.best and (choice.arm.label, choice.arm.task) not in left_out
        for cell in choice.arm.reported(choice.best.params, choice.arm.report_seeds)
    ]


def reported_cells(study: Study, choices: Sequence[Chosen]) -> list[Settings]:
    """The chosen settings on the reporting seeds.

    Raises:
        UserError: in every task there is a draw of which no trial came to its end.
    """
    if cells := chosen_cells(choices):
        return cells
    where = f", in at least one of the {study.file.draws} draws of each task" if study.file.draws > 1 else ""
    raise UserError(f"no trial of the study {study.name!r} came to its end: all were pruned, diverged or failed{where}")


def _spent(folders: Sequence[Path]) -> tuple[int, float]:
    """The number of rounds trained in some cells, and the wall time of their workers in hours."""
    rounds = sum(store.read_status(folder).rounds for folder in folders)
    seconds = [store.read_timing(folder).get("seconds", 0.0) for folder in folders]
    return rounds, sum(seconds) / 3600


def check_blind(study: Study, data_root: Path) -> None:
    """Check that no trial trains or validates on a sample that the report tests, whatever the partition.

    Raises:
        UserError: a partition draws its tests anew for each seed.
    """
    tuning = [*study.file.seeds, *study.file.further_seeds]
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


def budget_table(study: Study, choices: Sequence[Chosen]) -> Table:
    """Table of methods and tasks: trials, rounds, ranges, the setting chosen, and values at the edge of a range."""
    heads = (
        "task", "trials", "pruned", "unfinished", "rounds trained", "hours", "range", "chosen", "validation",
        "at the edge",
    )  # fmt: skip
    rows = tuple((choice.arm.label, _entries(choice)) for choice in choices)
    budgets = {(choice.arm.task, len(choice.trials), choice.arm.cells[0].rounds) for choice in choices}
    equal_budgets = len(budgets) == len({choice.arm.task for choice in choices})
    equal = "Every method had the same number of trials of the same length."
    unequal = "The budgets differ: the methods did not have the same number of trials, or not of the same length."
    caption = (
        f"Tuned by validation {choices[0].arm.score} ({' and '.join(name.upper() for name in study.metrics)}, the "
        f"best round of the mean over the seeds {_list(study.file.seeds)}), on trials that have no test split. The "
        f"chosen setting was run anew on the seeds {_list(study.file.report_seeds)}: all test figures are of these."
    )
    notes = tuple([equal if equal_budgets else unequal] if len(choices) > 1 else [])
    title = "Tuning budgets and chosen settings"
    how = _how(study)
    return Table("tuning", title, caption, "Method", tuple(map(Column, heads)), rows, notes, how=how)


def _how(study: Study) -> str:
    """Say how settings are drawn and chosen, and what the columns count."""
    draws, final = study.file.draws, study.file.further_seeds
    texts = [
        *([f"Each task was tuned in {draws} independent draws, which share the seeds evenly."] if draws > 1 else []),
        f"The best {FINALISTS} trials of each method ran again on the seeds {_list(final)}, and the best "
        "over all seeds is chosen. Finalists whose further runs diverged or failed are left out of the choice; where "
        "none is left, the trials' own seeds decide."
        if final
        else "The best trial is chosen.",
        "Where a draw chose no setting, its method is not reported on that task. Where a list or range has them, trial "
        "0 is the settings as the grid and the methods' files have them (their papers' defaults).",
        "Trials are those that ended; unfinished ones (running elsewhere, or failed and tried again by the next "
        "command) are no part of the budget. Rounds trained and hours are of all cells of trials and finalists; hours "
        "are wall time of a worker, so they depend on the machine and what else it did.",
        f"Sampler {study.file.sampler} (`tpe` draws at random until {STARTUP_TRIALS} trials of a method have ended), "
        f"pruner {study.file.pruner}. A value within 5 % of an end of its range, or the least or greatest of a list, "
        "is at the edge: a wider range may hold a better one.",
    ]
    return " ".join(texts)


def _entries(choice: Chosen) -> tuple[TableEntry, ...]:
    arm, best = choice.arm, choice.best
    figures = choice.finals.get(best.number, best.values) if best else None
    ranges = "; ".join(f"{dimension.name}: {dimension.text}" for dimension in arm.dimensions)
    return (
        words(arm.title),
        number(len(choice.trials), decimals=0),
        number(choice.counts.get("pruned", 0), decimals=0),
        number(sum(choice.counts.values()) - len(choice.trials), decimals=0),
        number(choice.rounds, decimals=0),
        amount(choice.hours),
        words(ranges),
        words(values_text(best.params) if best else "none: no trial came to its end"),
        words(" / ".join(f"{100 * value:.2f}" for value in figures) if figures else "–"),
        words(", ".join(choice.at_edge) or "–"),
    )


def trials_table(choice: Chosen, name: str) -> Table:
    """Every trial of an arm that has ended."""
    dimensions = choice.arm.dimensions
    heads = [*(dimension.name for dimension in dimensions), "state", "GM", "PM", "remark"]
    rows = tuple(
        (str(trial.number), (*(_value(trial.params[dimension.key]) for dimension in dimensions), *_result(trial)))
        for trial in choice.trials
    )
    title = f"Trials of {choice.arm.label}, {choice.arm.title}"
    caption = f"Validation {choice.arm.score} in percent at the best round of the mean over the tuning seeds."
    return Table(name, title, caption, "Trial", tuple(map(Column, heads)), rows)


def _value(value: Any) -> TableEntry:
    decimals = 6 if isinstance(value, float) else 0
    return TableEntry(value=value, decimals=decimals) if is_number(value) else words(str(value))


def _result(trial: "FrozenTrial") -> tuple[TableEntry, ...]:
    figures = [trial.user_attrs.get(metric) for metric in ("gm", "pm")]
    return (
        words(trial.state.name.lower()),
        *(words("–") if figure is None else number(100 * figure) for figure in figures),
        words(trial.user_attrs.get("reason", "")),
    )


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
