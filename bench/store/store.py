"""The run store: `RUN/run.json` and one folder per cell, `RUN/<cell id>/` (docs/run-store.md).

Small files are replaced as a whole (temporary file in the same folder, fsync, rename, fsync of the folder). Tables grow
by one write per version; a checkpoint remembers their sizes, and a resumed cell cuts them back to it, so a killed cell
ends with the bytes of an undisturbed one.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, ValidationError

from bench.config.identity import description
from bench.errors import UserError
from bench.settings import Settings
from bench.store import documents, inside
from bench.store.documents import read_json as read_json

CellState = Literal["waiting", "running", "done", "failed", "diverged", "interrupted"]

FINISHED: tuple[CellState, ...] = ("done", "diverged")
"""A second run skips these: nothing would come out differently."""

GENERATIONS = 2
"""Checkpoints of a cell that stay on the disk."""

COLUMNS = {
    "metrics": ("round", "metric", "on", "mean", "split", "quantity", "value"),
    "clients": ("round", "metric", "client", "split", "correct", "samples"),
    "hits": ("round", "metric", "on", "bits"),
    "scores": ("round", "metric", "on", "mean", "split", "quantity", "value"),
    "client_scores": ("round", "metric", "client", "split", "quantity", "value"),
    "changes": ("round", "stage", "metric", "on", "mean", "split", "quantity", "value"),
    "ledger": (
        "round",
        "seconds",
        "settled",
        "up",
        "down_distinct",
        "down_receivers",
        "up_buffers",
        "down_distinct_buffers",
        "down_receivers_buffers",
    ),
    "work": ("round", "steps", "samples", "server_steps", "server_samples"),
    "timeline": ("round", "client", "kind", "start", "end"),
}
"""The tables of a cell, `RUN/<cell id>/<name>.csv`, as docs/run-store.md explains them. None has wall time."""

RECORDS = ("settings.json", "partition.json", "tests.json", "samples.json", "relations.json", "privacy.json")
"""Files of a cell that its checksums cover beside the tables, where it has them. How long it took,
`timing.json`, is no result and differs after an interruption."""

EVALUATED = ("round", "metric", "on", "mean", "client", "split", "quantity", "value")
"""Columns of `evaluated.csv`, which `bench evaluate` adds rows to after a cell has finished: no checksum covers it."""

FURTHER = ("scores", "client_scores")
"""Tables that only cells have whose settings ask for further scores; all other tables are the same without them."""

OPTIONAL = (*FURTHER, "changes")
"""Tables that some cells do not have; `changes` have those whose data change."""


def optional_tables(settings: Settings) -> tuple[str, ...]:
    """The optional tables that a cell has."""
    return (*(FURTHER if settings.further_metrics else ()), *(("changes",) if settings.timeline else ()))


REMEDY = "the next `bench run` does the cell again"
"""How the reason ends for which a finished cell is not used."""

_COVERED = {*RECORDS, *(f"{name}.csv" for name in COLUMNS)}
_LOCK = "lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class BusyError(Exception):
    """Folder in which another living process works.

    Attributes:
        holder: that process, `pid@host`.
    """

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder.name} is held by process {holder}")
        self.holder = holder


@dataclass(frozen=True)
class Status:
    """The content of `status.json`, without wall time, which is in `timing.json`.

    Attributes:
        state: `waiting` when there is no file yet.
        rounds: server versions done; `total`: server versions asked for.
        reason: why the cell failed, diverged or was interrupted.
        path: the recorded path, on which bytes depend besides the settings (device, executor, lanes, torch, CPU ...).
        backend: the backend of recorded steps: the fastest one, or the fastest that is left after a failure.
        steps: `fallen back` where a backend failed or a loss runs one by one, else `as planned`. How many steps were
            recorded is in `timing.json`, as it differs after an interruption.
        derived: metrics derived by SCD's Remark 4.1; tables print them in brackets.
        partition: `hash` and `summary`.
        checksums: of the tables of a finished cell by name, and of `RECORDS` by file name.
        cell: id of the cell, so that a copied folder is told from the cell whose name it has; empty where its
            folder is named otherwise.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    state: CellState = "waiting"
    rounds: int = 0
    total: int = 0
    reason: str = ""
    path: dict[str, Any] = field(default_factory=dict)
    backend: str = ""
    steps: str = ""
    derived: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    partition: dict[str, str] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    cell: str = ""


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part."""
    inside.replace(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_status(folder: Path, settings: Settings | None = None) -> Status:
    """Read the status of a cell.

    The state is `interrupted`, so that the next run continues the cell and nothing treats it as done, where the status
    file is damaged, or missing beside results, where it says `running` but no process holds the cell (it was killed),
    and where a finished cell is not sound: see `_fault`.

    Args:
        folder: the cell's folder.
        settings: the settings that the cell should have; None: not compared.
    """
    if folder.is_symlink():
        return Status("interrupted", reason=f"its folder is a link: remove it, and {REMEDY}")
    try:
        content = read_json(folder / "status.json")
        if content is None and (folder / "metrics.csv").exists():
            return Status("interrupted", reason=f"status.json: missing; {REMEDY}")
        status = Status() if content is None else documents.checked(Status, content, folder / "status.json")
    except UserError:
        return Status("interrupted", reason=f"status.json: damaged; {REMEDY}")
    if status.state == "running" and not is_locked(folder):
        return replace(status, state="interrupted", reason="its process was killed")
    if status.state in FINISHED and (fault := _fault(folder, status, settings)):
        return replace(status, state="interrupted", reason=f"{fault}; {REMEDY}")
    return status


def is_unsound(status: Status) -> bool:
    """Whether a finished cell is not used, because its files are damaged, changed or another cell's."""
    return status.state == "interrupted" and status.reason.endswith(REMEDY)


def _fault(folder: Path, status: Status, settings: Settings | None) -> str:
    """Explain why a finished cell cannot be used: the first fault of its files, or an empty string.

    Every file on which a number rests agrees with its checksum, or at least is what it should be; the rounds are all
    there; and the settings are those of the cell that the run names.
    """
    total = status.total if settings is None else settings.rounds
    if status.total != total or not 0 <= status.rounds <= total:
        return f"status.json: {status.rounds} of {status.total} rounds, where the cell has {total}"
    if status.state == "done" and status.rounds != total:
        return f"status.json: {status.rounds} of {total} rounds, which is not done"
    checksums = {name if name in RECORDS else f"{name}.csv": value for name, value in status.checksums.items()}
    if strange := checksums.keys() - _COVERED:
        return f"status.json: checksum of an unknown file {min(strange)[:40]!r}"
    if settings is not None and (fault := identity_fault(folder, status, settings)):
        return fault
    uncovered = _COVERED - checksums.keys() if "settings.json" in checksums else ()
    if others := [name for name in uncovered if (folder / name).exists()]:
        return f"{min(others)}: not a file of this cell"
    if wrong := [file for file, value in checksums.items() if _checksum(folder / file) != value]:
        return f"{', '.join(wrong)}: changed or damaged since (checksum)"
    needed = {"partition.json"} | ({"tests.json"} if (folder / "hits.csv").exists() else set())
    for file in RECORDS[1:]:
        fault = documents.problem(folder / file)
        if fault and (fault != "missing" or file in needed):
            return f"{file}: {fault}"
    return ""


def identity_fault(folder: Path, status: Status, settings: Settings) -> str:
    """Say that a cell's folder is another cell's, or cannot be told from one; empty where it is that of the settings.

    No id is computed, so that neither methods nor plug-ins are imported.
    """
    if status.cell not in ("", folder.name):
        return f"status.json: of cell {status.cell[:40]!r}, whose folder was copied here"
    try:
        content = read_json(folder / "settings.json")
        if content is None:
            return "settings.json: missing"
        stored = Settings(**content)
    except (UserError, ValidationError, TypeError):
        return "settings.json: damaged"
    if stored == settings or description(stored) == description(settings):
        return ""
    return f"settings.json: of another cell ({stored.name[:40]!r}, seed {stored.seed}), whose folder was copied here"


def read_timing(folder: Path) -> dict[str, Any]:
    """Read `timing.json`, the times that a cell took; empty where the file is missing or damaged."""
    return documents.read(folder, "timing.json") or {}


def checksum(path: Path, size: int | None = None) -> str:
    """Checksum of a file, or of its first `size` bytes."""
    with open(path, "rb") as file:
        if size is None:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return hashlib.blake2b(file.read(size), digest_size=16).hexdigest()


def _checksum(path: Path) -> str:
    """Checksum of a file; empty where there is no file, or only a link to one."""
    if not inside.is_file(path):
        return ""
    stat = path.stat()
    return _known_checksum(path, stat.st_size, stat.st_mtime_ns)


@functools.cache
def _known_checksum(path: Path, size: int, time: int) -> str:
    return checksum(path, size)


def write_status(folder: Path, status: Status) -> None:
    """Replace `status.json`."""
    write_json(folder / "status.json", asdict(status))


def record_checksums(folder: Path) -> dict[str, str]:
    """Checksums of those of `RECORDS` that a cell has, by file name."""
    return {name: checksum(folder / name) for name in RECORDS if (folder / name).exists()}


def remove_temporaries(folder: Path) -> None:
    """Remove half-written files of a killed process, and entries that stand where a cell needs a file or folder."""
    for path in folder.rglob(f"*{inside.TEMPORARY}"):
        inside.remove(path)
    for path in folder.iterdir():
        if path.is_symlink() or (path.suffix in (".json", ".csv", ".txt") and path.is_dir()):
            inside.remove(path)


def remove_leftovers(folder: Path, status: Status) -> None:
    """Remove checkpoints of rounds before the last, which a cell that is done does not need, where a kill left them."""
    if status.state == "done" and not (folder / "checkpoint").is_symlink():
        with contextlib.suppress(OSError):  # somebody else removed them, or `--keep` asked for the last state
            for path in (folder / "checkpoint").glob("*"):
                if path.name.isdigit() and int(path.name) < status.total:
                    inside.remove(path)
            (folder / "checkpoint").rmdir()


def remove_cell(folder: Path) -> None:
    """Remove a cell's folder, its settings last: what a kill leaves is still listed as a cell, to be removed again.

    Raises:
        BusyError: another process works on the cell.
    """
    with locked(folder):
        clear(folder, keep=(_LOCK, "settings.json"))
        inside.remove(folder)
    inside.sync_folder(folder.parent)


def forget(folder: Path) -> None:
    """Remove everything a cell has, but for its lock.

    Raises:
        BusyError: another process works on the cell.
    """
    if not folder.exists():
        return
    with locked(folder):
        clear(folder)


def clear(folder: Path, keep: Sequence[str] = (_LOCK,)) -> None:
    """Remove everything in a folder but for some names."""
    for path in folder.iterdir():
        if path.name not in keep:
            inside.remove(path)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder against other processes, on this machine and on file systems that share `flock`.

    The kernel lets go of the lock when its process ends, however it ends, so there are no stale locks. The file's text
    (`pid@host`) is for people.

    Raises:
        BusyError: another process holds it, and `wait` is not set.
        UserError: the file system has no locks.
    """
    with inside.update(folder / _LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise BusyError(folder, file.read(100).strip() or "(no name yet)") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UserError(
                f"{folder}: its file system has no locks ({error.strerror}), so two runs could spoil each other's "
                "files there. Mount it with locks (Lustre: -o flock) or choose another place with --out"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}@{socket.gethostname()}")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the folder."""
    try:
        with open(inside.open_file(folder / _LOCK, os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError, UserError):
        return False
    except BlockingIOError:
        return True
    return False
