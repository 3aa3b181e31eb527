"""MLflow as a copy of the run store (docs/tracking.md): filled from the store's files; no run depends on it.

The callback `Tracking` has a process that reads the run folder every few seconds and writes what is new. It is a
process because importing MLflow takes seconds of a core, and only a process can be ended while a request lasts. As the
copy follows from the files alone, `bench track` fills in later what an outage left out, with the same code: the tag
`mirrored` of a cell's MLflow run is a digest of all that it is a copy of. A process adds to the MLflow runs that it has
begun itself; one that another process left incomplete is deleted and written anew.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # its server starts slow helpers for jobs that we have none of
}
"""Variables that tell MLflow how to behave, where the user's environment does not say otherwise."""

PASS_SECONDS = 10.0
"""Seconds between two readings of the run folder."""
DRAIN_SECONDS, STOP_SECONDS = 60.0, 5.0
"""Longest time in seconds that a finished run waits for its copy; and one that the user stopped."""

_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_STATUS = {"done": "FINISHED", "diverged": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
_MOST = {"params": 100, "metrics": 900, "tags": 100}
"""So many MLflow takes in one request (of metrics 1000)."""
_ALL = 50_000
"""The largest page of runs that MLflow gives."""


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
    """
    from sqlalchemy import URL

    url = URL.create("sqlite", database=str(file.absolute())).render_as_string()
    return url.replace("sqlite:", "sqlite+pysqlite:", 1) if "%" in url else url


class Tracking(Callback):
    """Copies a run to MLflow while it runs, in a process that always ends together with this one.

    Args:
        run: the run folder, with its `run.json`.
        uri: the address of MLflow's store, by `choose_store`.
    """

    def __init__(self, run: Path, uri: str) -> None:
        self._run, self._uri = run, uri
        self._warned = False
        inside.make_folder(run, run / "tracking")
        self._pipe, child_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_follow, args=(child_end, run, uri), daemon=True)
        self._process.start()
        child_end.close()

    def at_end(self, at: Moment) -> None:
        """Warn as soon as a cell ends after the store has failed."""
        self._listen()

    def finish(self, seconds: float) -> None:
        """Let the process write the rest for at most `seconds`, and print one warning if something is missing then."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(seconds)
        self._listen()
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            self._warn("it is too slow to have everything by now")
        elif self._process.exitcode != 0:
            self._warn(f"{self._run}/tracking/log.txt says why it ended")
        self._pipe.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the process has ended
            if self._pipe.poll():
                self._warn(self._pipe.recv())

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
    pause, last, said = 0.0, False, False
    while not last:
        last = pipe.poll(pause)  # true once the parent has sent something, or is gone
        pause = PASS_SECONDS
        try:
            mirror = mirror or Mirror(run, uri)
            mirror.update()
        except outages(UserError) as error:
            if not said:  # the parent warns once, and nobody would empty the pipe
                pipe.send(explain(error, uri))
            said = True
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
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._seen: dict[str, store.Status] = {}
        self._begun: dict[str, tuple[str, set[str]]] = {}
        self._parents: dict[str, str] = {}
        self._marked: set[str] = set()

    def update(self) -> int:
        """Write the cells that have changed, and return the number of cells that have begun."""
        from bench.results.results import load_run

        view = load_run(self._run)
        experiment = self._experiment(view.info["grid"])
        self._mark_others(experiment, view)
        cells = {cell.id: cell for cell in view.cells if cell.status.state != "waiting"}
        inside.make_folder(self._run, self._locked)
        changed = [cell for cell in cells.values() if self._seen.get(cell.id) != cell.status]
        for cell in sorted(changed, key=lambda cell: _times(cell)[0] or math.inf):  # a parent starts with the first
            with store.locked(self._locked, wait=True):  # two mirrors at once would make two MLflow runs of a cell
                self._write(experiment, view.info, cell)
            self._seen[cell.id] = cell.status
        return len(cells)

    def _write(self, experiment: str, info: dict[str, Any], cell: "CellView") -> None:
        """Bring a cell's MLflow run up to date: add to what this process has written, or else write all of it anew."""
        all_points = (*curve_points(cell), *reported_points(cell))
        points = {repr(point): point for point in all_points if point.round <= cell.status.rounds}
        tags = _tags(info, cell)
        tags["mirrored"] = _digest(cell, points, tags)
        key = {"cell": cell.id, "run": self._name(info)}
        run = next(iter(self._runs(experiment, key)), None)
        if run and run.data.tags.get("mirrored") == tags["mirrored"]:
            return
        begun_id, written = self._begun.pop(cell.id, ("", set()))
        if run and (run.info.run_id != begun_id or not written <= points.keys()):
            self._client.delete_run(run.info.run_id)
            run = None
        from mlflow.entities import Metric, Param, RunTag

        start, end = _times(cell)
        parent = self._parent(experiment, cell, info, start)
        if not run:
            written = set()
            run = self._client.create_run(experiment, start, {**key, "mlflow.parentRunId": parent}, cell.name)
            self._log(run, "params", [Param(*entry) for entry in _flat(cell.settings.model_dump(mode="json"))])
        new = [point for text, point in points.items() if text not in written]
        # The store keeps no wall time of a round.
        self._log(run, "metrics", [Metric(point.name, point.value, run.info.start_time, point.round) for point in new])
        if cell.status.state != "running":
            self._end(run, parent, cell, end)
        self._log(run, "tags", [RunTag(*tag) for tag in tags.items()])  # last: all the rest is there
        self._begun[cell.id] = run.info.run_id, set(points)

    def _end(self, run: "Run", parent: str, cell: "CellView", end: int | None) -> None:
        """Add a cell's files, and end its MLflow run and the method's."""
        for file in (cell.folder / name for name in ARTIFACTS):
            if file.exists():
                self._client.log_artifact(run.info.run_id, str(file))
        self._client.set_terminated(run.info.run_id, _STATUS[cell.status.state], end)
        last = max(end or 0, self._client.get_run(parent).info.end_time or 0)
        self._client.set_terminated(parent, "FINISHED", last or None)

    def _log(self, run: "Run", kind: str, items: Sequence[Any]) -> None:
        for at in range(0, len(items), _MOST[kind]):
            batch: dict[str, Any] = {kind: items[at : at + _MOST[kind]]}
            self._client.log_batch(run.info.run_id, **batch)

    def _name(self, info: Mapping[str, Any]) -> str:
        """Name of the run folder that tells it from others in one MLflow store."""
        return f"{self._run.resolve().name} {info['created']}"

    def _mark_others(self, experiment: str, view: "RunView") -> None:
        """Mark MLflow runs of cells that are no longer the run's: other settings, code or data made new cells."""
        current = {cell.id for cell in view.cells}
        if current != self._marked:
            for run in self._runs(experiment, {"run": self._name(view.info)}):
                id, mark = run.data.tags.get("cell"), run.data.tags.get("current")
                if mark and mark != (expected := str(id in current).lower()):
                    self._client.set_tag(run.info.run_id, "current", expected)
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

    def _runs(self, experiment: str, key: Mapping[str, str]) -> "list[Run]":
        """The MLflow runs with these tags."""
        # MLflow's filters have no escape for an apostrophe: a tag with one is compared here
        condition = " and ".join(f"tags.{name} = '{value}'" for name, value in key.items() if "'" not in value)
        runs = self._client.search_runs([experiment], condition, max_results=_ALL)
        return [run for run in runs if key.items() <= run.data.tags.items()]

    def _parent(self, experiment: str, cell: "CellView", info: Mapping[str, Any], start: int | None) -> str:
        """Id of the MLflow run of a method, under which its cells stand, or of a study, under which its trials do.

        It lasts from the start of the first of them to the end of the last.
        """
        kind, name = ("study", info["grid"]) if cell.settings.protocol == "tuning" else ("method", cell.label)
        if name not in self._parents:
            key = {kind: name, "run": self._name(info)}
            parent = [*self._runs(experiment, key)] or [self._client.create_run(experiment, start, key, name)]
            self._parents[name] = parent[0].info.run_id
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


def _digest(cell: "CellView", points: Collection[str], tags: Mapping[str, str]) -> str:
    """Digest of all that MLflow's run of a cell has, once it is complete."""
    later = cell.folder / "evaluated.csv"
    added = inside.read_bytes(later) if later.exists() else b""
    return hashlib.blake2b(repr([*sorted(points), *sorted(tags.items())]).encode() + added, digest_size=8).hexdigest()


def _tags(info: Mapping[str, Any], cell: "CellView") -> dict[str, str]:
    """The tags of a cell's MLflow run, without those that are empty."""
    status = cell.status
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
    return {name: value for name, value in tags.items() if value}


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


def outages(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions of a tracking store that is missing, read-only, not MLflow's, or without a driver; and `others`."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, OSError, ImportError, *others


def explain(error: BaseException, uri: str) -> str:
    """The first line of the message of what caused an error: the system's or the database's where there is one."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return str(error).strip().partition("\n")[0].replace(uri, shown(uri))[:200]


def shown(uri: str) -> str:
    """An address without the password in it."""
    parts = urlsplit(uri)
    return uri.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else uri
