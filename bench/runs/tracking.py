"""MLflow as a copy of the run store (docs/tracking.md): filled from the store's files; no run depends on it.

The callback `Tracking` has a process that reads the run folder every few seconds and writes what is new. It is a
process because importing MLflow takes seconds of a core, and only a process can be ended while a request lasts. As the
copy follows from the files alone, `bench track` fills in later what an outage left out, with the same code: a cell's
MLflow run is found by its tags, of which `mirrored_rounds`, `mirrored_digest` and `mirrored_reported` say how far it
is a copy.
"""

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from bench.errors import UserError
from bench.runs.callbacks import Callback, Moment
from bench.settings import PRESENTATION, RECORDED
from bench.store import inside, store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from bench.results.results import CellView, RunView

ARTIFACTS = (
    "settings.json", "partition.json", "tests.json", *(f"{name}.csv" for name in (*store.COLUMNS, "evaluated")),
    "error.txt", "log.txt",
)  # fmt: skip
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # MLflow's own defaults wait minutes for a server that is not there
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its server starts slow helpers for jobs that we have none of
}
"""Variables that tell MLflow how to behave, where the user's environment does not say otherwise."""

PASS_SECONDS, RETRY_SECONDS = 10.0, 60.0
"""Seconds between two readings of the run folder; and between two attempts while the store does not answer."""
DRAIN_SECONDS, STOP_SECONDS = 60.0, 5.0
"""Longest time in seconds that a finished run waits for its copy; and one that the user stopped."""
PATIENCE_SECONDS, PATIENCE_SHARE = 2.0, 0.03
"""A server that accepts nothing for so many seconds, or this share of the run's time, is not waited for at the end."""

_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_ENDED = {"done": "FINISHED", "diverged": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
_MOST = {"params": 100, "metrics": 900, "tags": 100}
"""So many MLflow takes in one request (of metrics 1000)."""


def choose_store(run: Path, wish: str | None) -> str:
    """Choose the tracking store of a run: the user's wish, else MLFLOW_TRACKING_URI, else RUN/mlflow.db.

    Raises:
        UserError: MLflow cannot keep runs at that address.
    """
    uri = wish or os.environ.get("MLFLOW_TRACKING_URI") or embedded_uri(run)
    if uri.partition(":")[0].partition("+")[0] not in _SCHEMES:
        option = "--tracking-uri" if wish else "MLFLOW_TRACKING_URI"
        raise UserError(f"{option} {uri}: MLflow needs an address such as http://127.0.0.1:5000 or sqlite:///mlflow.db")
    return uri


def embedded_uri(run: Path) -> str:
    """The SQLite store inside the run folder."""
    return sqlite_url(run.resolve() / "mlflow.db")


def sqlite_url(file: Path) -> str:
    """Write the address of an SQLite file for SQLAlchemy, where `?`, `#` and `%` would end or change the path.

    An address with quoted characters names the driver, too: MLflow takes the text after `sqlite:///` for a path and
    makes its folders.

    Raises:
        UserError: this version of SQLAlchemy cannot read such a name from an address.
    """
    from sqlalchemy import URL, make_url

    path = str(file.absolute())
    url = URL.create("sqlite", database=path).render_as_string()
    if make_url(url).database != path:  # SQLAlchemy before 2.1 reads nothing back from `%3F`
        raise UserError(f"{file}: the name of its folder needs SQLAlchemy 2.1 or later; take one without ? and %")
    return url.replace("sqlite:", "sqlite+pysqlite:", 1) if "%" in url else url


class Tracking(Callback):
    """Copies a run to MLflow while it runs, in a process that always ends together with this one.

    Args:
        run: the run folder, with its `run.json`.
        uri: the address of MLflow's store, by `choose_store`.
    """

    def __init__(self, run: Path, uri: str) -> None:
        self._run, self._uri = run, uri
        self._began = time.monotonic()
        self._ready = self._warned = False
        inside.make_folder(run, run / "tracking")
        self._pipe, child_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_follow, args=(child_end, run, uri), daemon=True)
        self._process.start()
        child_end.close()

    def at_end(self, at: Moment) -> None:
        """Warn as soon as a cell ends after the store has failed."""
        while self._listen(0):
            pass

    def finish(self, seconds: float) -> None:
        """Let the process write the rest for at most `seconds`, and print one warning if something is missing then.

        A server that is slow or gone gets less time; for the store in the run folder the whole time is allowed.
        """
        begin = time.monotonic()
        embedded = self._uri == embedded_uri(self._run)
        patience = seconds if embedded else max(PATIENCE_SECONDS, PATIENCE_SHARE * (begin - self._began))
        with contextlib.suppress(OSError):  # it has ended; its exit status is looked at below
            self._pipe.send(None)
        while (left := begin + seconds - time.monotonic()) > 0:
            if not self._listen(min(left, patience) if self._ready else left):
                break
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            self._warn("it is too slow to have everything by now")
        elif self._process.exitcode != 0:
            self._warn(f"{self._run}/tracking/log.txt says why it ended")
        self._pipe.close()

    def _listen(self, seconds: float) -> bool:
        """Hear the process once: "" where it is ready or has written a cell, else a reason why the store takes none.

        Returns:
            False where it said nothing for so many seconds, or has ended.
        """
        try:
            if not self._pipe.poll(seconds):
                return False
            if reason := self._pipe.recv():
                self._warn(reason)
        except (EOFError, OSError):
            return False
        self._ready = True
        return True

    def _warn(self, reason: str) -> None:
        if not self._warned:
            again = shlex.join(["bench", "track", str(self._run)])
            text = f"warning: tracking in {shown(self._uri)}: {reason}. `{again}` fills in what is missing"
            print(text, file=sys.stderr, flush=True)
        self._warned = True


def _follow(pipe: Connection, run: Path, uri: str) -> None:
    """Main function of the process: copy what is new until the run ends, or its process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
    with inside.append(run / "tracking" / "log.txt") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    mirror: Mirror | None = None
    pause, last = 0.0, False
    while not last:
        last = pipe.poll(pause)  # what the parent sends is never read, so this stays true
        if last and pause == RETRY_SECONDS:
            break  # the user has been told what to do and need not wait for another attempt
        try:
            if mirror is None:
                import pandas  # noqa: F401  # reads the tables; imported later, it would take of the server's patience

                mirror = Mirror(run, uri)
                pipe.send("")
            mirror.update(lambda: pipe.send("") if pipe.poll() else None, skip_new=not last)
        except BrokenPipeError:  # the parent is gone
            break
        except outages(UserError) as error:
            if pause != RETRY_SECONDS:
                pipe.send(explain(error, uri))
            pause = RETRY_SECONDS
        else:
            pause = PASS_SECONDS
    sys.stdout.flush()
    os._exit(0)  # the run is waiting, and Python would need most of a second to unload MLflow's modules


def mirror_run(run: Path, uri: str) -> int:
    """Bring an MLflow store up to date with a run folder, and return the number of cells that it has now.

    Raises:
        UserError: `run` is not a run folder, or the store does not accept the run.
    """
    try:
        return Mirror(run, uri).update()
    except outages() as error:
        raise UserError(f"{shown(uri)} does not accept the run: {explain(error, uri)}") from None


def _client(uri: str) -> "MlflowClient":
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


class Mirror:
    """Writes the cells of one run folder to one MLflow store, one MLflow run each."""

    def __init__(self, run: Path, uri: str) -> None:
        self._run = run
        self._locked = inside.check_place(run, run / "tracking")
        self._artifacts = None
        if uri == embedded_uri(run):
            for name in ("mlflow.db", "mlartifacts"):
                inside.check_place(run, run / name)
            self._artifacts = (run.resolve() / "mlartifacts").as_uri()
        self._client = _client(uri)
        self._seen: dict[str, store.Status] = {}
        self._running: set[str] = set()
        self._parents: dict[str, str] = {}
        self._marked: set[str] = set()

    def update(self, after_cell: Callable[[], None] = lambda: None, *, skip_new: bool = False) -> int:
        """Write the cells that have changed, and return the number of cells that have begun.

        Args:
            after_cell: called after each cell that was written.
            skip_new: whether running cells that the last call did not see are left to the next call, so that a short
                cell has ended by then and is written once.
        """
        from bench.results.results import load_run

        view = load_run(self._run)
        self._mark_others(view)
        cells = {cell.id: cell for cell in view.cells if cell.status.state != "waiting"}
        ids_before, self._running = self._running, {id for id, cell in cells.items() if cell.status.state == "running"}
        skipped_ids = self._running - ids_before if skip_new else set()
        inside.make_folder(self._run, self._locked)
        changed = [c for c in cells.values() if self._seen.get(c.id) != c.status and c.id not in skipped_ids]
        for cell in sorted(changed, key=lambda cell: _times(cell)[0] or math.inf):  # a parent starts with the first
            with store.locked(self._locked, wait=True):  # two mirrors at once would make two MLflow runs of a cell
                self._write(view.info, cell)
            self._seen[cell.id] = cell.status
            after_cell()
        return len(cells)

    def _write(self, info: dict[str, Any], cell: "CellView") -> None:
        """Bring a cell's MLflow run up to date; make it anew where the cell began again or reports another round."""
        points = [point for point in curve_points(cell) if point.round <= cell.status.rounds]
        reported = reported_points(cell)
        experiment = self._experiment(info["grid"])
        key = {"cell": cell.id, "run": self._name(info)}
        run = next(self._runs(experiment, key), None)
        if run and not _continues(run, cell, points, reported):
            self._client.delete_run(run.info.run_id)
            run = None
        start, end = _times(cell)
        run = run or self._client.create_run(experiment, start, key, cell.name)
        id, tags = run.info.run_id, {**key, **_tags(info, cell, points, reported, run.data.tags)}
        tags["mlflow.parentRunId"] = parent = self._parent(experiment, cell, info, start)
        if all(run.data.tags.get(name) == value for name, value in tags.items()):
            return
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(name, text) for name, text in _flat(cell.settings.model_dump(mode="json"))]
        self._log(id, "params", [param for param in params if param.key not in run.data.params])
        first = int(run.data.tags.get("mirrored_rounds", 0))
        new = [*(point for point in points if point.round > first), *reported]
        # The store keeps no wall time of a round. With one time for all, MLflow drops what is written a second time.
        self._log(id, "metrics", [Metric(point.name, point.value, run.info.start_time, point.round) for point in new])
        if cell.status.state == "running":
            self._client.update_run(id, status="RUNNING")
        else:
            for file in (cell.folder / name for name in ARTIFACTS):
                if file.exists():
                    self._client.log_artifact(id, str(file))
            self._client.set_terminated(id, _ENDED[cell.status.state], end)
            last = max(end or 0, self._client.get_run(parent).info.end_time or 0)
            self._client.set_terminated(parent, "FINISHED", last or None)
        self._log(id, "tags", [RunTag(name, value) for name, value in tags.items()])  # last: all the rest is there

    def _log(self, run: str, kind: str, items: Sequence[Any]) -> None:
        for at in range(0, len(items), _MOST[kind]):
            batch: dict[str, Any] = {kind: items[at : at + _MOST[kind]]}
            self._client.log_batch(run, **batch)

    def _name(self, info: Mapping[str, Any]) -> str:
        """Name of the run folder that tells it from others in one MLflow store."""
        return f"{self._run.resolve().name} {info['created']}"

    def _mark_others(self, view: "RunView") -> None:
        """Mark MLflow runs of cells that are no longer the run's: other settings, code or data made new cells."""
        current = {cell.id for cell in view.cells}
        experiment = self._client.get_experiment_by_name(view.info["grid"])
        if current == self._marked or not experiment:
            return
        for run in self._runs(experiment.experiment_id, {"run": self._name(view.info)}):
            tags = run.data.tags
            if "cell" in tags and tags["cell"] not in current and tags.get("current") != "false":
                self._client.set_tag(run.info.run_id, "current", "false")
        self._marked = current

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if not experiment:
            return self._client.create_experiment(name, self._artifacts)
        if self._artifacts and experiment.artifact_location != self._artifacts:
            raise UserError(
                f"{self._run} was moved or copied, but mlflow.db has the old paths: remove mlflow.db and mlartifacts "
                "there, then `bench track` mirrors the run again"
            )
        return experiment.experiment_id

    def _runs(self, experiment: str, key: Mapping[str, str]) -> "Iterator[Run]":
        """The MLflow runs with these tags."""
        # MLflow's filters have no escape for an apostrophe: a tag with one is compared here
        condition = " and ".join(f"tags.{name} = '{value}'" for name, value in key.items() if "'" not in value)
        token = None
        while True:
            page = self._client.search_runs([experiment], condition, page_token=token)
            yield from (run for run in page if key.items() <= run.data.tags.items())
            if not (token := page.token):
                return

    def _parent(self, experiment: str, cell: "CellView", info: Mapping[str, Any], start: int | None) -> str:
        """Id of the MLflow run of a method, under which its cells stand, or of a study, under which its trials do.

        It lasts from the start of the first of them to the end of the last.
        """
        kind, name = ("study", info["grid"]) if cell.settings.protocol == "tuning" else ("method", cell.label)
        if name not in self._parents:
            key = {kind: name, "run": self._name(info)}
            parent = next(self._runs(experiment, key), None) or self._client.create_run(experiment, start, key, name)
            self._parents[name] = parent.info.run_id
        return self._parents[name]


class MetricPoint(NamedTuple):
    """One value of one metric."""

    round: int
    name: str
    value: float


def curve_points(cell: "CellView") -> list[MetricPoint]:
    """Scores that are not missing, and traffic, by round and name, e.g. `gm/global/test/accuracy`, `ledger/up`."""
    points = []
    for row in (row for name in ("metrics", "scores") for row in cell.table(name).to_dict("records")):
        parts = (row[part] for part in ("metric", "on", "mean", "split", "quantity"))
        if not math.isnan(row["value"]) or row["quantity"] in RECORDED:
            points.append(MetricPoint(row["round"], "/".join(part for part in parts if part), row["value"]))
    for row in cell.table("ledger").to_dict("records"):
        points += [MetricPoint(row["round"], f"ledger/{name}", row[name]) for name in store.COLUMNS["ledger"][1:]]
    return points


def reported_points(cell: "CellView") -> list[MetricPoint]:
    """The scores that the report shows, at the round that its protocol chooses: accuracies
    `reported/pm/local/train_size`, others `reported/pm/local/train_size/auroc`."""
    from bench.results.figures import further_scores, reported_figures

    points = []
    for quantity in ("accuracy", *further_scores([cell])):
        for figure in reported_figures(cell, quantity):
            parts = ("reported", *(figure[part] for part in ("metric", "on", "mean")))
            name = "/".join(part for part in (*parts, quantity if quantity != "accuracy" else "") if part)
            if not math.isnan(figure["value"]):
                points.append(MetricPoint(figure["round"], name, figure["value"]))
    return points


def _continues(run: "Run", cell: "CellView", points: Sequence[MetricPoint], reported: Sequence[MetricPoint]) -> bool:
    """Whether MLflow's values are the first values of this cell; if not, the cell was started again and has others.

    Reported values may be of another round since `select_by` changed. They would stay beside the new ones, and MLflow
    shows the value of the largest step.
    """
    tags, rounds = run.data.tags, int(run.data.tags.get("mirrored_rounds", 0))
    if tags.get("status") == "failed" and cell.status.state != "failed":
        return False  # tried again: its error is no longer true
    if any(run.data.metrics.get(point.name, point.value) != point.value for point in reported):
        return False
    first = [point for point in points if point.round <= rounds]
    return rounds > cell.status.rounds or tags.get("mirrored_digest", _digest([])) == _digest(first)


def _digest(points: Sequence[MetricPoint], added: bytes = b"") -> str:
    return hashlib.blake2b(repr(sorted(points)).encode() + added, digest_size=8).hexdigest()


def _tags(
    info: Mapping[str, Any],
    cell: "CellView",
    points: Sequence[MetricPoint],
    reported: Sequence[MetricPoint],
    last_tags: Mapping[str, str],
) -> dict[str, str]:
    """The tags of a cell's MLflow run, without those that are empty and have never been there."""
    status, later = cell.status, cell.folder / "evaluated.csv"
    since = store.read_timing(cell.folder).get("this_attempt_since", "")
    commits = [entry["commit"] for entry in info["history"] if entry["time"] <= since]
    tags = {
        "status": status.state,
        "current": "true",
        "label": cell.settings.name,
        "case": cell.settings.case,
        "reason": status.reason,
        "derived": ",".join(status.derived),
        "partition": status.partition.get("hash", ""),
        "commit": (commits[-1] if commits else "") or "",
        **{f"path.{name}": str(value) for name, value in status.path.items()},
    }
    if status.state == "done":
        tags["mirrored_reported"] = _digest(reported, inside.read_bytes(later) if later.exists() else b"")
    if status.rounds >= int(last_tags.get("mirrored_rounds", 0)):
        tags |= {"mirrored_rounds": str(status.rounds), "mirrored_digest": _digest(points)}
    return {name: value for name, value in tags.items() if value or name in last_tags}


def _times(cell: "CellView") -> tuple[int | None, int | None]:
    """Start and end of a cell in milliseconds, as if it had run in one go: MLflow shows how long."""
    timing = store.read_timing(cell.folder)
    if "written" not in timing:
        return None, None
    end = round(1000 * datetime.fromisoformat(timing["written"]).timestamp())
    return end - round(1000 * timing["seconds"]), end


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as MLflow's parameters, e.g. `hp.mu` = `0.1`, but for `PRESENTATION`: parameters cannot change."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif prefix or name not in PRESENTATION:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def charts_path(grid: str, uri: str) -> str:
    """The part of a link to MLflow's page that leads to the charts of a grid's experiment; empty where it has none."""
    try:
        experiment = _client(uri).get_experiment_by_name(grid)
    except outages():
        return ""
    return f"/#/experiments/{experiment.experiment_id}/runs?compareRunsMode=CHART" if experiment else ""


def outages(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions of a tracking store that is missing, read-only, not MLflow's, or without a driver; and `others`."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, ImportError, *others


def explain(error: Exception, uri: str) -> str:
    """Explain an error in a short line: the message of the system or the database, else the start of MLflow's."""
    from sqlalchemy.exc import SQLAlchemyError

    chain: list[BaseException] = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    plain = isinstance(chain[-1], OSError) or any(isinstance(cause, SQLAlchemyError) for cause in chain)
    text = str(chain[-1] if plain else error).strip().replace(uri, shown(uri))
    line = text.partition("\n")[0]
    return line if len(line) <= 200 else line[:200] + " ..."


def shown(uri: str) -> str:
    """An address without the password in it."""
    parts = urlsplit(uri)
    return uri.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else uri
