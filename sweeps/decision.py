"""The run of `bench decide`: cells are timed, a plan is made that fits in the minutes, and its study is run."""

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from bench.config.grid import grid_of
from bench.errors import UserError
from bench.federation.cell_identity import Identities
from bench.runs.cell_runner import CellRunner
from bench.runs.options import SessionOptions
from bench.runs.plan import plan as planned_cells
from bench.runs.session import Session
from bench.settings import Settings
from bench.store import documents, store
from sweeps.budget import (
    FEW_SEEDS,
    LONG,
    MOST_SEEDS,
    SEEDS,
    SHORT,
    TUNING_SEEDS,
    DecisionPlan,
    MethodTime,
    Timing,
    fitting,
    fixed,
    least_seconds,
    seconds_of,
    seed_seconds,
)
from sweeps.cells import data_digests, with_data
from sweeps.fair import choose
from sweeps.portfolio import study_of_decision
from sweeps.run import open_studies
from sweeps.session import open_session, run_study
from sweeps.storage import study_storage
from sweeps.study import Study
from sweeps.study_reader import load_study

STUDY, PLAN = "study.yaml", "plan.json"
"""In the run folder: the study as a file, and what was planned."""
_READING = 0.2  # seconds in which the models of a reported cell are applied to the held-out rows


class DecisionRecord(BaseModel):
    """The content of `plan.json`.

    Attributes:
        cell: id of a cell with the data and their settings.
        score: that decides, and by which rounds and settings are chosen.
        methods: of the portfolio.
        timing: of their cells.
        plan: None where there was too little time for any.
        tuned: whether tuning is over.
        minutes: of the longest command that decided how many seeds it has time for.
    """

    model_config = ConfigDict(extra="forbid")

    cell: str
    score: str
    methods: list[str]
    timing: Timing
    plan: DecisionPlan | None = None
    tuned: bool = False
    minutes: float = 0.0


class TooLittleTimeError(Exception):
    """The minutes are too few for the smallest plan.

    Attributes:
        seconds: that would do.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass
class DecisionRun:
    """One command's part of a decision.

    Attributes:
        folder, name: of the run and its study.
        cell: settings of a cell with the data.
        score: that decides.
        methods: names.
        options: of its sessions.
        runner: gives the runner of the cells.
        jobs: cells side by side.
        begin, end: when the command began and when its time is up, of `time.monotonic`.
        minutes: that the command may take.
        say: takes a line on what is done now.
        seeds: that are reported, whatever time they take; None: as many as there is time for.
    """

    folder: Path
    name: str
    cell: Settings
    score: str
    methods: Sequence[str]
    options: SessionOptions
    runner: Callable[[SessionOptions], CellRunner]
    jobs: int
    begin: float
    end: float
    minutes: float
    say: Callable[[str], None]
    seeds: int | None = None

    def run(self) -> DecisionPlan:
        """Run the study; returns the plan that it followed.

        Once the number of seeds is planned, another call with as many minutes runs what is missing of them, and no
        more: how far a machine comes in a time differs from call to call, and a decision should not.

        Raises:
            UserError: the folder has a decision on other data, or a cell cannot run here.
            TooLittleTimeError: nothing fits in the time.
            Stopped: the user stopped it; another call goes on.
        """
        record = self._record()
        plan = record.plan
        assert plan is not None
        if not record.tuned:
            self.say(f"tuning {len(plan.methods)} methods, {plan.trials} trials of {plan.rounds} rounds each")
            self._study(plan, timeout=None if self.seeds else self._for_trials(record, plan), least=1)
            record.tuned = True
            self._keep(record)
        elif self._ended() < plan.seeds * len(plan.methods):
            self._study(plan, timeout=0.0)
        if self.seeds or record.minutes >= self.minutes:
            return plan
        left = self.end - time.monotonic() - record.timing.first
        more = max(0, int(0.8 * left / (self._a_seed(record, plan) + _READING * len(plan.methods))))
        seeds = max(plan.seeds, min(MOST_SEEDS, plan.seeds + more))
        # Kept before the seeds are run: the call after a kill among them runs the same ones, and decides the same.
        record.plan, record.minutes = dataclasses.replace(plan, seeds=seeds), self.minutes
        self._keep(record)
        if seeds > plan.seeds:
            self.say(f"time is left for {seeds} seeds in all")
            self._study(record.plan, timeout=0.0)
        return record.plan

    def study(self, plan: DecisionPlan) -> Study:
        """The study of a plan."""
        content = study_of_decision(
            self.name, self.cell, plan.methods, rounds=plan.rounds, trials=plan.trials, seeds=range(plan.seeds)
        )
        return load_study(content, [])

    def chosen(self, plan: DecisionPlan) -> dict[str, dict[str, Any]]:
        """The searched settings that were chosen, by method; those without any result have none."""
        study = self.study(plan)
        identities = Identities(self.options.data_root)
        study = with_data(study, data_digests(study, identities))
        choices = choose(study, open_studies(study, study_storage(self.folder)), self.folder, identities.of)
        return {choice.arm.label: choice.best.params if choice.best else {} for choice in choices}

    def _study(self, plan: DecisionPlan, timeout: float | None, least: int = 0) -> None:
        """Run the study of a plan: its trials, as long as there is time, and its reported seeds."""
        study, file = self.study(plan), self.folder / STUDY
        self.folder.mkdir(parents=True, exist_ok=True)
        store.write_text(file, study.source)
        session, runner = open_session(study, self.folder, self.options, "bench decide"), self.runner(self.options)
        run_study(session, study, runner, name=str(file), overrides=[], timeout=timeout, least=least, page=False)

    def _entries(self) -> list[dict[str, Any]]:
        """The entries of `run.json` for the cells so far."""
        return list((documents.read_run_file(self.folder) or {"cells": []})["cells"])

    def _ended(self) -> int:
        """Count the reported cells that have ended."""
        reported = [entry["id"] for entry in self._entries() if entry["settings"]["protocol"] == "honest"]
        return sum(store.read_status(self.folder / id).state in store.FINISHED for id in reported)

    def _for_trials(self, record: DecisionRecord, plan: DecisionPlan) -> float:
        """Seconds in which trials may begin, beside the first of each method: what the report and the last of the
        trials leave."""
        a_seed, first = self._a_seed(record, plan), record.timing.first
        slowest = max(record.timing.methods[name].seconds(plan.rounds) for name in plan.methods)
        last = slowest * len(TUNING_SEEDS) / min(self.jobs, len(TUNING_SEEDS))
        return max(0.0, self.end - time.monotonic() - last - 1.3 * (first + SEEDS * a_seed))

    def _a_seed(self, record: DecisionRecord, plan: DecisionPlan) -> float:
        """Seconds of a cell of each method, side by side: of those that have run, else as timed before."""
        times = dict(record.timing.methods)
        measured: dict[str, list[float]] = {}
        for entry in self._entries():
            seconds = store.read_timing(self.folder / entry["id"]).get("seconds")
            if entry["settings"]["rounds"] == plan.rounds and entry["label"] in times and seconds is not None:
                measured.setdefault(entry["label"], []).append(seconds)
        times |= {name: MethodTime(statistics.median(values), 0.0) for name, values in measured.items()}
        return seed_seconds(plan, times, self.jobs)

    def _record(self) -> DecisionRecord:
        """Read the plan of an earlier command on the same data, or make one."""
        (planned,) = planned_cells([self.cell], self.options.data_root, download=False)
        file = self.folder / PLAN
        if (content := documents.read_json(file)) is not None:
            known = documents.checked(DecisionRecord, content, file)
            if (known.cell, known.score, known.methods) != (planned.id, self.score, list(self.methods)):
                raise UserError(f"{self.folder} has a decision about other data or settings; give another --out")
            if known.plan and self.seeds:
                wanted = fixed(known.timing, self.seeds, self.cell.rounds)
                if dataclasses.replace(known.plan, seeds=self.seeds) != wanted:
                    raise UserError(f"{self.folder} has a decision that was planned by --minutes; give another --out")
                known.plan = wanted
            if known.plan:
                return known
        timing = self._timed()
        left = self.end - time.monotonic()
        plan = fitting(timing, self.jobs, left, self.cell.rounds)
        if self.seeds:
            plan = fixed(timing, self.seeds, self.cell.rounds)
            if (seconds := seconds_of(plan, timing, self.jobs)) > left:
                self.say(f"{self.seeds} seeds take about {math.ceil(seconds / 60)} minutes")
        elif plan is not None:
            plan = dataclasses.replace(plan, seeds=FEW_SEEDS)  # more follow if there is still time after tuning
        record = DecisionRecord(cell=planned.id, score=self.score, methods=list(self.methods), timing=timing, plan=plan)
        self._keep(record)
        if plan is None:
            raise TooLittleTimeError(time.monotonic() - self.begin + least_seconds(timing, self.jobs, self.cell.rounds))
        return record

    def _keep(self, record: DecisionRecord) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        store.write_json(self.folder / PLAN, record.model_dump(mode="json"))

    def _timed(self) -> Timing:
        """Run short cells beside the run, one after the other: two of each method, and a still shorter one."""
        self.say(f"timing {len(self.methods)} methods")
        arms = self.study(DecisionPlan(tuple(self.methods), LONG, 1, 1)).arms
        cells = [arm.cells[0].model_copy(update={"seed": seed}) for arm in arms for seed in TUNING_SEEDS]
        cells.insert(len(TUNING_SEEDS), cells[0].model_copy(update={"rounds": SHORT}))
        by_itself = dataclasses.replace(self.options, quiet=True, jobs=1)
        seconds: dict[str, list[float]] = {name: [] for name in self.methods}
        short = 0.0
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(grid_of(cells, "timing"), Path(scratch, "timing"), by_itself)
            for view in session.run(self.runner(by_itself)):
                if view.status.state not in store.FINISHED:
                    raise UserError(f"{view.name}: {view.status.state}: {view.status.reason}")
                # One that diverges with the default settings was stopped early; tuning may find better ones.
                rounds = max(1, view.status.rounds)
                taken = store.read_timing(view.folder)["seconds"] * view.settings.rounds / rounds
                if view.settings.rounds == SHORT:
                    short = taken
                else:
                    seconds[view.label].append(taken)
        return Timing.of(seconds, short)
