"""MLflow as a copy of the run store (docs/tracking.md): filled from the store's files; no run depends on it.

`bench run` starts one process for it beside its workers (bench/runs/tracking/process.py). The copy is derived from the
files alone, so anybody can fill in later what an outage left out (`bench track`): a cell's MLflow run is found again by
its tags, and the tags `mirrored_rounds`, `mirrored_digest` and `mirrored_reported` say how far it is a copy.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from bench.errors import UserError
from bench.settings import PRESENTATION, RECORDED
from bench.store import inside, store
from bench.store.database import sqlite_url

if TYPE_CHECKING:
    from mlflow.entities import Run

    from bench.results.results import CellView, RunView

ARTIFACTS = (
    "settings.json",
    "partition.json",
    "metrics.csv",
    "clients.csv",
    "hits.csv",
    "scores.csv",
    "client_scores.csv",
    "evaluated.csv",
    "changes.csv",
    "tests.json",
    "ledger.csv",
    "work.csv",
    "timeline.csv",
    "error.txt",
    "log.txt",
)

_BATCH = 900  # MLflow takes up to 1000 metrics in a request
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_ENDED = {"done": "FINISHED", "diverged": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
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

T = TypeVar("T")


def choose_store(run: Path, wish: str | None) -> str:
    """Choose the tracking store of a run: the user's wish, else MLFLOW_TRACKING_URI, else RUN/mlflow.db.

    Raises:
        UserError: MLflow cannot keep runs at that address.
    """
    uri = wish or os.environ.get("MLFLOW_TRACKING_URI") or embedded_uri(run)
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme not in _SCHEMES:
        option = "--tracking-uri" if wish else "MLFLOW_TRACKING_URI"
        raise UserError(f"{option} {uri}: MLflow needs an address such as http://127.0.0.1:5000 or sqlite:///mlflow.db")
    return uri


def embedded_uri(run: Path) -> str:
    """The SQLite store inside the run folder."""
    return sqlite_url(run.resolve() / "mlflow.db")


def mirror_run(run: Path, uri: str) -> int:
    """Bring an MLflow store up to date with a run folder, and return the number of cells that it has now.

    Raises:
        UserError: `run` is not a run folder, or the store does not take the run.
    """
    try:
        return Mirror(run, uri).update()
    except outages() as error:
        raise UserError(f"{shown(uri)} does not take the run: {explain(error, uri)}") from None


class Mirror:
    """Writes the cells of one run folder to one MLflow store, one MLflow run each."""

    def __init__(self, run: Path, uri: str) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._run = run
        self._locked = inside.check_place(run, run / "tracking")
        self._artifacts = None
        if uri == embedded_uri(run):
            for name in ("mlflow.db", "mlartifacts"):
                inside.check_place(run, run / name)
            self._artifacts = (run.resolve() / "mlartifacts").as_uri()
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._seen: dict[str, store.Status] = {}
        self._running: set[str] = set()
        self._parents: dict[tuple[str, str], str] = {}
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
        for cell in cells.values():
            if self._seen.get(cell.id) != cell.status and cell.id not in skipped_ids:
                with store.locked(self._locked, wait=True):  # two mirrors at once would make two MLflow runs of a cell
                    self._write(view.info, cell)
                self._seen[cell.id] = cell.status
                after_cell()
        return len(cells)

    def _write(self, info: dict[str, Any], cell: "CellView") -> None:
        points = [point for point in _points(cell) if point.round <= cell.status.rounds]
        reported = _reported_points(cell)
        experiment = self._experiment(info["grid"])
        key = {"cell": cell.id, "run": self._name(info)}
        run = self._find(experiment, key)
        if run and not (_continues(run.data.tags, cell, points) and _reports_alike(run, cell, reported)):
            self._client.delete_run(run.info.run_id)
            run = None
        run = run or self._client.create_run(experiment, _start_time(cell), key, cell.name)
        tags = {**key, **_tags(info, cell, points, reported, run.data.tags)}
        parent_key = {"study": info["grid"]} if cell.settings.protocol == "tuning" else {"method": cell.label}
        tags["mlflow.parentRunId"] = self._parent(experiment, parent_key, key["run"])
        if all(run.data.tags.get(name) == value for name, value in tags.items()):
            return
        self._write_params(run, cell)
        self._write_metrics(run, points, reported)
        self._write_state(run, cell)
        self._write_tags(run, tags)  # last: they say that all the rest is there

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
                f"{self._run} was moved or copied, and mlflow.db means files at the old place: remove mlflow.db and "
                "mlartifacts there and mirror the run anew"
            )
        return experiment.experiment_id

    def _find(self, experiment: str, key: Mapping[str, str]) -> "Run | None":
        return next(self._runs(experiment, key), None)

    def _runs(self, experiment: str, key: Mapping[str, str]) -> "Iterator[Run]":
        # MLflow's filters have no escape for an apostrophe: a tag with one is compared here
        condition = " and ".join(f"tags.{name} = '{value}'" for name, value in key.items() if "'" not in value)
        token = None
        while True:
            page = self._client.search_runs([experiment], condition, page_token=token)
            for run in page:
                if key.items() <= run.data.tags.items():
                    yield run
            if not (token := page.token):
                return

    def _parent(self, experiment: str, owner: Mapping[str, str], run: str) -> str:
        """Id of the MLflow run of a method, under which its cells stand, or of a study, under which its trials do."""
        ((kind, name),) = owner.items()
        if (kind, name) not in self._parents:
            key = {**owner, "run": run}
            method_run = self._find(experiment, key) or self._client.create_run(experiment, None, key, name)
            self._client.set_terminated(method_run.info.run_id)
            self._parents[kind, name] = method_run.info.run_id
        return self._parents[kind, name]

    def _write_params(self, run: "Run", cell: "CellView") -> None:
        from mlflow.entities import Param

        params = [Param(name, text) for name, text in _flat(cell.settings.model_dump(mode="json"))]
        for batch in _batches([param for param in params if param.key not in run.data.params], 100):
            self._client.log_batch(run.info.run_id, params=batch)

    def _write_metrics(self, run: "Run", points: "Sequence[_Point]", reported: "Sequence[_Point]") -> None:
        from mlflow.entities import Metric

        first = int(run.data.tags.get("mirrored_rounds", 0))
        # the store keeps no wall time of a round; with one time for all, MLflow drops what is written a second time
        time = run.info.start_time
        metrics = [Metric(point.name, point.value, time, point.round) for point in points if point.round > first]
        metrics += [Metric(point.name, point.value, time, point.round) for point in reported]
        for batch in _batches(metrics, _BATCH):
            self._client.log_batch(run.info.run_id, metrics=batch)

    def _write_state(self, run: "Run", cell: "CellView") -> None:
        if cell.status.state == "running":
            self._client.update_run(run.info.run_id, status="RUNNING")
            return
        for name in ARTIFACTS:
            if (cell.folder / name).exists():
                self._client.log_artifact(run.info.run_id, str(cell.folder / name))
        end = _timing(cell).get("written")
        self._client.set_terminated(run.info.run_id, _ENDED[cell.status.state], _milliseconds(end))

    def _write_tags(self, run: "Run", tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for batch in _batches([RunTag(name, value) for name, value in tags.items()], 100):
            self._client.log_batch(run.info.run_id, tags=batch)


class _Point(NamedTuple):
    """One value of one metric."""

    round: int
    name: str
    value: float


def _points(cell: "CellView") -> list[_Point]:
    """Scores that are not missing, and traffic, by round and name, e.g. `gm/global/test/accuracy`, `ledger/up`."""
    points = []
    for row in (row for name in ("metrics", "scores") for row in cell.table(name).to_dict("records")):
        parts = (row[part] for part in ("metric", "on", "mean", "split", "quantity"))
        if not math.isnan(row["value"]) or row["quantity"] in RECORDED:
            points.append(_Point(row["round"], "/".join(part for part in parts if part), row["value"]))
    for row in cell.table("ledger").to_dict("records"):
        points += [_Point(row["round"], f"ledger/{name}", row[name]) for name in store.COLUMNS["ledger"][1:]]
    return points


def _reported_points(cell: "CellView") -> list[_Point]:
    """The scores that the report shows, at the round that its protocol chooses: accuracies
    `reported/pm/local/train_size`, others `reported/pm/local/train_size/auroc`."""
    from bench.results.figures import further_scores, reported_figures

    points = []
    for quantity in ("accuracy", *further_scores([cell])):
        for figure in reported_figures(cell, quantity):
            parts = ("reported", *(figure[part] for part in ("metric", "on", "mean")))
            name = "/".join(part for part in (*parts, quantity if quantity != "accuracy" else "") if part)
            if not math.isnan(figure["value"]):
                points.append(_Point(figure["round"], name, figure["value"]))
    return points


def _continues(tags: Mapping[str, str], cell: "CellView", points: Sequence[_Point]) -> bool:
    """Whether MLflow's values are the first values of this cell; if not, the cell was started again and has others."""
    if tags.get("status") == "failed" and cell.status.state != "failed":
        return False  # tried again: its error is no longer true
    rounds = int(tags.get("mirrored_rounds", 0))
    return rounds > cell.status.rounds or tags.get("mirrored_digest", _digest([])) == _digest(
        point for point in points if point.round <= rounds
    )


def _reports_alike(run: "Run", cell: "CellView", reported: Sequence[_Point]) -> bool:
    """Whether MLflow's reported values are still the report's; another `select_by` may have chosen another round.

    They would stay beside the new ones, and MLflow shows the value of the largest step.
    """
    same = run.data.tags.get("mirrored_reported") == _reported_digest(cell, reported)
    return same or all(run.data.metrics.get(point.name, point.value) == point.value for point in reported)


def _reported_digest(cell: "CellView", reported: Sequence[_Point]) -> str:
    """Digest of what a finished cell reports and of later evaluations; empty while it is not done."""
    if cell.status.state != "done":
        return ""
    later = cell.folder / "evaluated.csv"
    added = inside.read_bytes(later) if later.exists() else b""
    return hashlib.blake2b(_digest(reported).encode() + added, digest_size=8).hexdigest()


def _digest(points: Iterable[_Point]) -> str:
    return hashlib.blake2b(repr(sorted(points)).encode(), digest_size=8).hexdigest()


def _tags(
    info: Mapping[str, Any],
    cell: "CellView",
    points: Sequence[_Point],
    reported: Sequence[_Point],
    last_tags: Mapping[str, str],
) -> dict[str, str]:
    status = cell.status
    tags = {
        "status": status.state,
        "current": "true",
        "label": cell.settings.name,
        "case": cell.settings.case,
        "reason": status.reason,
        "derived": ",".join(status.derived),
        "partition": status.partition.get("hash", ""),
        "commit": _commit(info, cell),
        "mirrored_reported": _reported_digest(cell, reported),
        **{f"path.{name}": str(value) for name, value in status.path.items()},
    }
    if status.rounds >= int(last_tags.get("mirrored_rounds", 0)):
        tags |= {"mirrored_rounds": str(status.rounds), "mirrored_digest": _digest(points)}
    return {name: value for name, value in tags.items() if value or name in last_tags}


def _commit(info: Mapping[str, Any], cell: "CellView") -> str:
    """The commit of the command that last worked on the cell."""
    since = _timing(cell).get("this_attempt_since", "")
    commits = [entry["commit"] for entry in info["history"] if entry["time"] <= since]
    return (commits[-1] if commits else None) or ""


def _timing(cell: "CellView") -> dict[str, Any]:
    return store.read_timing(cell.folder)


def _start_time(cell: "CellView") -> int | None:
    """Start of the cell in milliseconds, as if it had run in one go: MLflow shows how long a run took."""
    timing = _timing(cell)
    end = _milliseconds(timing.get("written"))
    return None if end is None else end - round(1000 * timing["seconds"])


def _milliseconds(time: str | None) -> int | None:
    return round(1000 * datetime.fromisoformat(time).timestamp()) if time else None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as MLflow's parameters, e.g. `hp.mu` = `0.1`, but for `PRESENTATION`: parameters cannot change."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif prefix or name not in PRESENTATION:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def charts_path(grid: str, uri: str) -> str:
    """The part of a link to MLflow's page that leads to the charts of a grid's experiment; empty where it has none."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    try:
        experiment = MlflowClient(tracking_uri=uri, registry_uri=uri).get_experiment_by_name(grid)
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
