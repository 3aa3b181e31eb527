"""One attempt at a cell: from its data, or its newest checkpoint, to its status at the end."""

import contextlib
import datetime
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench.config.digests import data_and_models, own_code
from bench.engine.backends.backends import WrongRecordingError
from bench.engine.team import Helpers
from bench.errors import Lost, UserError, in_words, refusing_exits, shortage
from bench.federation.cell_data import CellData, load_all
from bench.federation.federation import Diverged, Federation
from bench.federation.snapshot import Packer
from bench.plugin import METHODS, file_of
from bench.results import saved_models
from bench.runs import blind
from bench.runs.cell_federation import build
from bench.runs.cell_options import Options
from bench.runs.events import Event
from bench.runs.progress import figures_text, headline
from bench.settings import Settings
from bench.store import checkpoint, documents, store
from bench.store.data_record import partition_record, shown_samples, tests_record
from bench.store.features import FeatureFiles
from bench.store.store import Status
from bench.store.tables import Tables

if TYPE_CHECKING:
    from bench.runs.callbacks import Calls

STATUS_SECONDS = 5.0
EVENT_SECONDS = 0.25

log = logging.getLogger(__name__)

FindHelpers = Callable[[Settings, Options, Mapping[str, Any]], Helpers]


class Attempt:
    """The state of one attempt at a cell."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        options: Options,
        report: Callable[[Event], None],
        stop: Callable[[], bool],
        helpers: FindHelpers | None,
    ) -> None:
        self.helpers = helpers
        self.settings = settings
        self.folder = folder
        self.options = options
        self.report = report
        self.stop = stop
        self.tables = Tables(folder, store.optional_tables(settings))
        self.writer = checkpoint.Writer(folder / "checkpoint")
        self.figures: dict[str, float] = {}
        self.saved_version: int | None = None
        self.seconds_before = 0.0
        self.calls = self.calls_before = Counter[str]()
        self.started = time.monotonic()
        self.last_checkpoint = self.last_status = self.last_event = self.started
        self.since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.status = Status("running", total=settings.rounds, cell=documents.id_of(folder))
        self.callbacks = _calls(options.callbacks, folder.name, settings, self._warn)
        self.federation: Federation | None = None

    def run(self) -> Status:
        """Train, and turn whatever happens into a status."""
        self._write_status()
        try:
            with refusing_exits():
                state, reason = self._train()
        except Lost:
            raise
        except Diverged as error:
            state, reason = "diverged", f"round {error.round + 1}: {error.what}"
        except WrongRecordingError as error:
            checkpoint.remove(self.folder / "checkpoint")  # the cell begins anew
            state, reason = "failed", str(error)
        except UserError as error:
            state, reason = "failed", str(error)
            self._write_error(f"{error}\n")
        except Exception as error:  # any error of one cell is caught here, so that the other cells run
            state, reason = "failed", shortage(error) or in_words(error, file_of(METHODS.get(self.settings.method)))
            self._write_error(traceback.format_exc())
        try:
            self._conclude(state, reason)
        except (OSError, UserError) as error:  # then the status cannot be written; only the event reports it
            if state in store.FINISHED:
                state, reason = "failed", shortage(error) or str(error)
                self.status = replace(self.status, state=state, reason=reason)
        if self.callbacks:
            self.callbacks.end(self.status.rounds, state, self.federation.server.state if self.federation else None)
        self._event()
        log.info("%s after %d rounds. %s", state, self.status.rounds, reason)
        return self.status

    def _conclude(self, state: store.CellState, reason: str) -> None:
        """Write how the cell ended, and clean up."""
        self.status = replace(self.status, state=state, reason=reason)
        if state not in store.FINISHED:
            self._write_status()
            return
        checksums = {name: checksum for name, (_, checksum) in self.tables.sync().items()}
        self.status = replace(self.status, checksums=checksums | store.record_checksums(self.folder))
        self._write_status()
        with contextlib.suppress(OSError):  # only now: if the process is killed earlier, the checkpoint is still there
            if self.options.keep in ("none", "best"):
                checkpoint.remove(self.folder / "checkpoint")
            store.remove_leftovers(self.folder, self.status)

    def _write_error(self, text: str) -> None:
        with contextlib.suppress(OSError):
            store.write_text(self.folder / "error.txt", text)

    def _train(self) -> tuple[store.CellState, str]:
        data = blind.read_data(self.folder) if self.options.blind else load_all(self.settings, self.options.data_root)
        features = FeatureFiles(self.folder, own_code(data_and_models(self.settings)).values())
        federation = build(self.settings, self.options, data, features)
        dataset, partition, _ = data
        store.write_json(self.folder / "partition.json", partition_record(dataset, partition, federation.malicious))
        store.write_json(self.folder / "tests.json", tests_record(partition, federation.clients.ids))
        if self.settings.shifts and dataset.x.ndim == 4:
            store.write_json(self.folder / "samples.json", shown_samples(dataset, partition))
        if self.helpers:
            team = self.helpers(self.settings, self.options, federation.path)
            federation.engine.share_with(team)
            log.info("%d devices share its clients", 1 + len(team))
        self.status = replace(
            self.status,
            path=dict(federation.path),
            derived=list(federation.derived),
            partition={"hash": partition.hash, "summary": partition.summary},
        )
        self._resume(federation)
        self.federation = federation
        self._event()
        with self.writer:  # no thread writes to the folder once another process may
            while federation.version < self.settings.rounds:
                if self.stop():
                    self._checkpoint(federation)
                    return "interrupted", "stopped by the user"
                federation.advance()
                self._record(federation)
            self._finish(federation, data)
        return "done", ""

    def _resume(self, federation: Federation) -> None:
        """Go on from the newest checkpoint that is whole and was made on the same path; else start again."""
        for candidate in checkpoint.load(self.folder / "checkpoint"):
            if "known" not in candidate.rest["federation"]:
                continue  # left by `--keep server`; training cannot continue from it
            if (
                candidate.rest["path"] != self.status.path
                or candidate.rest["partition"] != self.status.partition["hash"]
            ):
                log.warning(
                    "the checkpoint of round %d is from another path (%s): starting again",
                    candidate.version,
                    _differences(candidate.rest["path"], self.status.path),
                )
                break
            if not self.tables.cut(candidate.rest["tables"]):
                log.warning("the tables are not those of the checkpoint of round %d", candidate.version)
                continue
            federation.restore(candidate.tensors, candidate.rest["federation"])
            self._note_missing_scores(federation, candidate.rest["metrics"])
            self.seconds_before, self.figures = candidate.rest["seconds"], candidate.rest["figures"]
            self.calls = self.calls_before = Counter(candidate.rest["calls"])
            self.saved_version = federation.version
            self.status = _status_of(self.status, federation)
            log.info("going on after round %d", federation.version)
            return
        checkpoint.remove(self.folder / "checkpoint")
        checkpoint.remove(self.folder / saved_models.FOLDER)
        self.tables.restart()
        log.info("starting with round 1")

    def _note_missing_scores(self, federation: Federation, recorded: Collection[str]) -> None:
        """Warn of scores that the rounds before a checkpoint lack, as they ran with other `metrics`."""
        missing = [name for name in self.settings.further_metrics if name not in recorded]
        if missing and federation.version >= self.settings.eval_every:
            federation.warnings.append(
                f"rounds 1 to {federation.version} have no {', '.join(missing)}: they ran without it (--fresh runs the "
                "cell again)"
            )

    def _record(self, federation: Federation) -> None:
        """Write the rows of the version that has just ended, and whatever else is due."""
        version, now = federation.version, time.monotonic()
        traffic = self.tables.append_version(federation)
        scores: list[dict[str, Any]] = []
        if version % self.settings.eval_every == 0 or version == self.settings.rounds:
            if self.options.blind:
                blind.write_outputs(self.folder, version, federation.outputs().outputs)
            else:
                scores = self._evaluate(federation)
        for text in federation.warnings[len(self.status.warnings) :]:
            log.warning("%s", text)
        self.status, self.calls = _status_of(self.status, federation), self.calls_before + federation.engine.calls
        if self.callbacks:
            self.callbacks.version(version, traffic, scores, federation.server.state)
        if version < self.settings.rounds and now - self.last_checkpoint >= self.options.checkpoint_seconds:
            self._checkpoint(federation)
        if now - self.last_status >= STATUS_SECONDS:
            self.last_status = now
            self._write_status()
        if now - self.last_event >= EVENT_SECONDS:
            self.last_event = now
            self._event()

    def _evaluate(self, federation: Federation) -> list[dict[str, Any]]:
        """Write the scores of the version that has just ended, and return those of all clients together."""
        version, evaluation = federation.version, federation.evaluate()
        self.tables.append_evaluation(version, evaluation)
        if self.options.keep == "best" or self.settings.further_tests:
            saved_models.keep_reported(self.folder, version, evaluation, self.settings, federation.clients.ids)
        self.figures = headline(evaluation.metrics)
        log.info("round %d: %s", version, figures_text(self.figures))
        return evaluation.metrics + evaluation.scores

    def _checkpoint(self, federation: Federation) -> None:
        if self.saved_version == federation.version:
            return
        self.writer.start(self._new_checkpoint(federation, *federation.state()))
        self.saved_version, self.last_checkpoint = federation.version, time.monotonic()

    def _score_tests(self, federation: Federation, data: CellData) -> bool:
        """Score the reported models on the further tests; a failure is a warning, as `bench evaluate` can go on.

        Returns:
            Whether all are scored.
        """
        from bench.results.further_tests import score_kept  # here, as it takes pandas

        settings = self.settings
        try:
            score_kept(self.folder, settings, data, federation, settings.further_tests, settings.further_metrics)
        except (UserError, OSError) as error:
            text = f"not all further tests are scored: {shortage(error) or error}; `bench evaluate` goes on"
            self.status = replace(self.status, warnings=[*self.status.warnings, text])
            log.warning("%s", text)
            return False
        return True

    def _finish(self, federation: Federation, data: CellData) -> None:
        """Bring the tables to the disk, and save the part of the last state that `keep` asks for."""
        self.tables.sync()
        if relations := federation.relations():
            store.write_json(self.folder / "relations.json", relations)
        if statements := federation.privacy():
            store.write_json(self.folder / "privacy.json", {"statements": statements})
        all_scored = self.options.blind or not self.settings.further_tests or self._score_tests(federation, data)
        if all_scored and self.options.keep != "best":  # an attempt before may have left some of an earlier round
            checkpoint.remove(self.folder / saved_models.FOLDER)
        if self.options.keep in ("none", "best"):
            return
        if self.options.keep == "all":
            tensors, rest = federation.state()
        else:
            packer = Packer()
            rest = packer.pack({"server": federation.server.state})
            tensors = packer.tensors
        self.writer.save(self._new_checkpoint(federation, tensors, rest))

    def _new_checkpoint(
        self, federation: Federation, tensors: dict[str, torch.Tensor], rest: dict[str, Any]
    ) -> checkpoint.Checkpoint:
        context = {
            "path": self.status.path,
            "partition": self.status.partition["hash"],
            "tables": self.tables.sync(),
            "metrics": self.settings.further_metrics,
            "seconds": self._seconds(),
            "calls": dict(self.calls),
            "figures": self.figures,
            "federation": rest,
        }
        return checkpoint.Checkpoint(federation.version, tensors, context)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _event(self) -> None:
        status = self.status
        event = Event(self.folder.name, status.state, status.rounds, status.total, dict(self.figures), status.reason)
        with self.writer.publishing:  # whoever gets the report may read the folder (`bench.cluster.transfer`)
            self.report(event)

    def _warn(self, text: str) -> None:
        """Tell the user, and the cell's log, of what does not stop the cell."""
        log.warning("%s", text)
        with self.writer.publishing:
            status = self.status
            self.report(Event(self.folder.name, "running", status.rounds, status.total, self.figures, warning=text))

    def _write_status(self) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        timing = {
            "seconds": round(self._seconds(), 3),
            "this_attempt_since": self.since,
            "written": now,
            "steps": dict(self.calls),  # on each backend; one of a cohort counts once
        }
        store.write_json(self.folder / "timing.json", timing)
        store.write_status(self.folder, self.status)  # last: a cell that is done is left alone by every later run


def _calls(callbacks: tuple[str, ...], cell: str, settings: Settings, warn: Callable[[str], None]) -> "Calls | None":
    """The calls of a cell's callbacks; None if it has none, as they take pandas, whose import starts a thread."""
    if not callbacks:
        return None
    from bench.runs.callbacks import Calls, unpack_callbacks

    return Calls(unpack_callbacks(callbacks), cell, settings, warn)


def _status_of(status: Status, federation: Federation) -> Status:
    """The status with a federation's version, warnings, backend and kind of steps."""
    engine, warnings = federation.engine, list(federation.warnings)
    return replace(status, rounds=federation.version, warnings=warnings, backend=engine.backend, steps=engine.steps_are)


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in changed) or "another partition"
