"""Running a study: Optuna is asked for settings, the cells of each trial run in the worker pool, and Optuna is told.

Everything that must last is in the run store and in Optuna's storage. A trial is marked with its worker's name, and a
worker holds a lock as long as it lives. So a trial whose worker died is taken over, with the same settings and
whatever its cells have done, and no two workers have the same trial.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.results.reported_round import (
    Curve,
    Curves,
    after,
    choose_round,
    curves_of_cells,
    selecting_curves,
    selection_curve,
    table_of,
    trailing_means,
)
from bench.rng import key
from bench.runs.cell_options import Options
from bench.runs.cell_runner import CellRunner, CellTask
from bench.runs.events import Event
from bench.runs.plan import PlannedCell
from bench.settings import Settings
from bench.store import inside, store
from bench.store.tables import read_table
from sweeps.cells import forget_unscored, list_cells
from sweeps.storage import open_storage, storage_problems
from sweeps.study import Arm, Study, values_text

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

STARTUP_TRIALS = 5
"""The median pruner lets so many trials of a method run to their end, and TPE guesses nothing before so many have
ended: with Optuna's ten, a study of eight trials would be a random search."""

POPULATION = 10
"""Size of a generation of NSGA-II; Optuna's 50 would be a random search in most studies."""


@dataclass
class _RunningTrial:
    """A trial whose cells this worker runs."""

    arm: Arm
    trial: "Trial"
    cells: list[PlannedCell]
    reported: set[int]
    checked: int = 0
    done: set[str] = field(default_factory=set)
    ended: bool = False

    @property
    def name(self) -> str:
        return f"{self.arm.label} {self.arm.title} trial {self.trial.number}"


def open_studies(study: Study, storage: str) -> "dict[str, optuna.Study]":
    """Open Optuna's studies, by name of the arm; they are made where they do not exist.

    Raises:
        UserError: the storage cannot be used.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with storage_problems(storage):
        opened = open_storage(storage)
        return {
            arm.name: optuna.create_study(
                storage=opened,
                study_name=arm.name,
                directions=["maximize"] * len(study.metrics),
                pruner=_pruner(study.file.pruner, arm.cells[0].rounds),
                load_if_exists=True,
            )
            for arm in study.arms
        }


def mean_curve(cells: list[Path], metric: str, settings: Settings) -> Curve:
    """The validation score by round by which the reported round is chosen, too (`select_by`), averaged over cells.

    It has the rounds that all cells have, after the last change of the data. Of a score whose smallest value is the
    best it is the negative.

    Args:
        cells: folders of the cells.
        metric: `gm` or `pm`.
        settings: of one of the cells.
    """
    curves = [selection_curve(_selecting(folder, settings), metric) for folder in cells]
    rounds = [round_ for round_ in curves[0] if all(round_ in curve for curve in curves)]
    return {round_: float(np.mean([curve[round_] for curve in curves])) for round_ in rounds}


def _selecting(folder: Path, settings: Settings) -> Curves:
    table = read_table(folder, table_of(settings.select_by))
    (curves,) = curves_of_cells(table, [len(table)], settings.select_by)
    return selecting_curves(after(curves, settings.last_change), settings.select_by)


def best_value(curve: Curve) -> float:
    """The objective of a validation curve: its best mean of a few rounds, by which the reported round is chosen too."""
    return max(trailing_means(curve).values())


@dataclass
class Tuner:
    """Asks Optuna for trials, runs their cells, and tells Optuna the results.

    Attributes:
        studies: the result of `open_studies`.
        folder: the run store, with its `run.json`.
        timeout: seconds after which no trial is begun.
        say: takes one line for each trial that has ended.
        least: trials of each arm that are begun even after the timeout.
        failed: reasons, one per trial with a failed cell; the next command tries these trials again.
    """

    study: Study
    studies: "dict[str, optuna.Study]"
    folder: Path
    options: Options
    identities: Identities
    timeout: float | None
    say: Callable[[str], None]
    least: int = 0
    worker: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    failed: list[str] = field(default_factory=list)
    _begin: float = field(default_factory=time.monotonic)
    _unwanted: set[str] = field(default_factory=set)
    _running: list[_RunningTrial] = field(default_factory=list)

    def run(self, runner: CellRunner) -> bool:
        """Run trials until every arm has had its number of them or time is up; false: the user stopped it."""
        worker = self.folder / "workers" / self.worker
        inside.make_folder(self.folder, worker)
        with store.locked(worker):
            return runner.run(self.tasks(), self.on_event, self._unwanted)

    def tasks(self) -> Iterator[CellTask]:
        """The cells of one trial after the other. A trial is chosen when a worker is free for its first cell."""
        while (self.least or not self._late()) and (running := self._next_trial()):
            for cell in running.cells:
                if running.ended:
                    break
                self._unwanted.discard(cell.id)
                place = inside.check_place(self.folder, self.folder / cell.id)
                yield CellTask(cell.settings, place, self.options)

    def on_event(self, event: Event) -> None:
        """Take note of an event of a cell: update its trial, prune it, or leave it for later."""
        for running in [trial for trial in self._running if event.cell in {cell.id for cell in trial.cells}]:
            if event.state in ("diverged", "failed"):
                status = store.read_status(self.folder / event.cell)
                reason = f"{event.cell} {status.state}: {status.reason}"
                self._prune(running, reason) if event.state == "diverged" else self._leave_for_later(running, reason)
            else:
                running.done |= {event.cell} if event.state == "done" else set()
                self._update(running)

    def elsewhere(self) -> int:
        """Count the trials that other workers have; of those whose worker has ended, nobody will hear."""
        from optuna.trial import TrialState

        return sum(
            trial.state == TrialState.RUNNING
            and trial.user_attrs.get("worker") != self.worker
            and not self._is_orphan(trial)
            for arm in self.study.arms
            for trial in self.studies[arm.name].get_trials(deepcopy=False)
        )

    def _late(self) -> bool:
        return self.timeout is not None and time.monotonic() >= self._begin + self.timeout

    def _next_trial(self) -> _RunningTrial | None:
        """Begin the next trial whose settings the method takes; None if there is none."""
        with store.locked(self.folder, wait=True):
            while chosen := self._choose_trial():
                if running := self._start(*chosen):
                    return running
            return None

    def _choose_trial(self) -> "tuple[Arm, Trial, FrozenTrial | None] | None":
        """Choose a trial whose worker died, as it was, else a new one of the arm with the fewest trials."""
        from optuna.trial import Trial, TrialState

        trials_by_arm = {arm: self.studies[arm.name].get_trials(deepcopy=False) for arm in self.study.arms}
        for arm, trials in trials_by_arm.items():
            for orphan in filter(self._is_orphan, trials):
                self._set_sampler(arm, orphan.number)
                return arm, Trial(self.studies[arm.name], orphan._trial_id), orphan
        begun = {
            arm: sum(trial.state != TrialState.WAITING for trial in trials) for arm, trials in trials_by_arm.items()
        }
        late = self._late()
        short = [arm for arm in self.study.arms if begun[arm] < (min(self.least, arm.trials) if late else arm.trials)]
        if not short:
            return None
        arm = min(short, key=lambda candidate: begun[candidate])
        return arm, self._new_trial(arm, trials_by_arm[arm]), None

    def _is_orphan(self, trial: "FrozenTrial") -> bool:
        from optuna.trial import TrialState

        worker = trial.user_attrs.get("worker", self.worker)
        if trial.state != TrialState.RUNNING or worker == self.worker:
            return False
        folder = self.folder / "workers" / worker  # not there: a worker with a run folder of its own
        return folder.is_dir() and not store.is_locked(folder)

    def _new_trial(self, arm: Arm, trials: "list[FrozenTrial]") -> "Trial":
        """Begin a new trial; it is put into the queue first, so that it has its worker's name from the beginning."""
        from optuna.trial import TrialState

        optuna_study = self.studies[arm.name]
        waiting = [trial.number for trial in trials if trial.state == TrialState.WAITING]
        if not waiting:
            point = arm.points[len(trials)] if arm.points else (arm.defaults or {}) if not trials else {}
            optuna_study.enqueue_trial(point, user_attrs={"worker": self.worker})
        self._set_sampler(arm, waiting[0] if waiting else len(trials))
        return optuna_study.ask()

    def _set_sampler(self, arm: Arm, number: int) -> None:
        """Set a sampler for one trial: its draws do not depend on what this process did before."""
        seed = key(self.study.file.sampler_seed, arm.draws, "sampler", number) % 2**32
        self.studies[arm.name].sampler = _sampler(self.study.file.sampler, seed)

    def _start(self, arm: Arm, trial: "Trial", earlier: "FrozenTrial | None") -> _RunningTrial | None:
        """Make the cells of a trial; where the method refuses its settings together, the trial ends here: None."""
        trial.set_user_attr("worker", self.worker)
        if earlier and not arm.points:
            self._repeat_draws(arm, trial, earlier)
        values = {dimension.key: dimension.suggest(trial) for dimension in arm.dimensions}
        running = _RunningTrial(arm, trial, [], set(earlier.intermediate_values) if earlier else set())
        self._running.append(running)
        try:
            cells = arm.trial(trial.number, values)
        except UserError as error:
            self._prune(running, f"refused: {error}")
            return None
        running.cells = [PlannedCell(self.identities.of(settings), settings) for settings in cells]
        list_cells(self.folder, running.cells)
        forget_unscored(self.folder, running.cells)
        trial.set_user_attr("cells", [cell.id for cell in running.cells])
        return running

    def _repeat_draws(self, arm: Arm, trial: "Trial", earlier: "FrozenTrial") -> None:
        """Repeat the draws of a killed worker, so that the values it had not stored do not repeat its earlier draws."""
        optuna_study = self.studies[arm.name]
        for dimension in arm.dimensions:
            stored = earlier.distributions.get(dimension.key)
            if stored and not stored.single() and dimension.key not in trial.relative_params:
                optuna_study.sampler.sample_independent(optuna_study, earlier, dimension.key, stored)

    def _update(self, running: _RunningTrial) -> None:
        """Report new rounds of the trial to Optuna, prune it if they are poor, complete it once all cells are done.

        After the last round nothing is left to be spared, and the best round's mean may still be the best of all.
        """
        folders, settings = [self.folder / cell.id for cell in running.cells], running.cells[0].settings
        if len(self.study.metrics) == 1:
            for step, value in mean_curve(folders, self.study.metrics[0], settings).items():
                if step <= running.checked:
                    continue
                running.checked = step
                if step not in running.reported:
                    running.trial.report(value, step)
                if step < settings.rounds and running.trial.should_prune():
                    self._prune(running, f"round {step}: {value:.4f} is worse than other trials at this round")
                    return
        if running.done == {cell.id for cell in running.cells}:
            self._complete(running, folders)

    def _complete(self, running: _RunningTrial, folders: list[Path]) -> None:
        settings = running.cells[0].settings
        figures = {metric: mean_curve(folders, metric, settings) for metric in ("gm", "pm")}
        missing = [metric for metric in self.study.metrics if not figures[metric]]
        if missing:
            self._leave_for_later(running, f"there is no validation {settings.select_by} of {' and '.join(missing)}")
            return
        for metric, curve in figures.items():
            if curve:
                running.trial.set_user_attr(metric, best_value(curve))
                running.trial.set_user_attr(f"{metric}_round", choose_round(curve))
        values = [best_value(figures[metric]) for metric in self.study.metrics]
        self.studies[running.arm.name].tell(running.trial, values)
        texts = (f"{name.upper()} {best_value(curve):.4f}" for name, curve in figures.items() if curve)
        self._end(running, ", ".join(texts))

    def _prune(self, running: _RunningTrial, reason: str) -> None:
        from optuna.trial import TrialState

        running.trial.set_user_attr("reason", reason)
        self.studies[running.arm.name].tell(running.trial, state=TrialState.PRUNED)
        self._end(running, f"pruned, {reason}")

    def _leave_for_later(self, running: _RunningTrial, reason: str) -> None:
        """Leave the trial as it is: it has no result, and the next command takes it over."""
        self.failed.append(f"{running.name}: {reason}")
        self._end(running, reason)

    def _end(self, running: _RunningTrial, text: str) -> None:
        running.ended = True
        self._running.remove(running)
        needed = {cell.id for other in self._running for cell in other.cells}
        self._unwanted.update(cell.id for cell in running.cells if cell.id not in needed)
        at = f"{running.trial.number + 1} of {running.arm.trials}"  # Optuna's own numbers begin with 0
        self.say(f"{running.name}, {at} ({values_text(running.trial.params)}): {text}")


def _sampler(name: str, seed: int) -> "optuna.samplers.BaseSampler":
    from optuna import samplers

    match name:
        case "tpe":
            # One setting after the other, in the study's order: several at once are drawn in the order of their names,
            # in which the method's own name stands, and so a method would be tuned otherwise under another name.
            return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=False)
        case "nsga2":
            return samplers.NSGAIISampler(population_size=POPULATION, seed=seed)
    return samplers.RandomSampler(seed=seed)  # also for `grid`, whose points are given


def _pruner(name: str, rounds: int) -> "optuna.pruners.BasePruner":
    from optuna import pruners

    match name:
        case "median":
            return pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=rounds // 4 + 1)
        case "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=max(1, rounds // 9), reduction_factor=3)
    return pruners.NopPruner()
