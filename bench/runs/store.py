"""The run store: `RUN/run.json` and one folder per cell, `RUN/<cell id>/` (docs/run-store.md).

Small files are replaced as a whole (temporary file in the same folder, fsync, rename, fsync of the folder). Tables grow
by one write per version; a checkpoint remembers their sizes, and a resumed cell cuts them back to it, so a killed cell
ends with the bytes of an undisturbed one.
"""

import contextlib
import csv
import errno
import fcntl
import functools
import hashlib
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bench.errors import UserError

CellState = Literal["waiting", "running", "done", "failed", "diverged", "interrupted"]

FINISHED: tuple[CellState, ...] = ("done", "diverged")
"""A second run skips these: nothing would come out differently."""

COLUMNS = {
    "metrics": ("round", "metric", "on", "mean", "split", "quantity", "value"),
    "clients": ("round", "metric", "client", "split", "correct", "samples"),
    "hits": ("round", "metric", "on", "bits"),
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
"""The tables of a cell: `RUN/<cell id>/<name>.csv`. `hits` has which test samples a model classified correctly, as bits
(cells from before it was kept have none), `ledger` bytes and simulated seconds (`seconds`: when a version was there,
`settled`: when its personalized models were, too), `work` the batches trained on and the samples read (cells from
before it was kept have none), `timeline` what clients did in the first versions, in simulated seconds; none has
wall time."""

_LOCK = "lock"
_TEMPORARY = ".tmp"
REMOVED = ".removed"
"""What the name of a cell's folder ends with while it is removed."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class BusyError(Exception):
    """Another living process works in the folder.

    Attributes:
        holder: that process, `pid@host`.
    """

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder.name} is held by process {holder}")
        self.holder = holder


@dataclass(frozen=True)
class Status:
    """What `status.json` holds. No wall time: that is in `timing.json`.

    Attributes:
        state: `waiting` when there is no file yet.
        rounds: server versions done; `total`: server versions asked for.
        reason: why the cell failed, diverged or was interrupted.
        path: what the bytes depend on besides the settings (device, executor, lanes, dtype, torch, CPU).
        backend: what steps run on once they are recorded: the fastest backend, or what was left after a failure.
        steps: `fallen back` where a backend failed or a loss runs one by one, else `as planned`. How many steps were
            recorded is in `timing.json`, as it differs after an interruption.
        derived: metrics derived by SCD's Remark 4.1; tables print them in brackets.
        partition: `hash` and `summary`.
        checksums: of the tables of a finished cell, by name.
    """

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


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one, never a part."""
    temporary = path.with_name(path.name + _TEMPORARY)
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Content of a JSON file, or None where there is none.

    Raises:
        UserError: it is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): delete it and give the command that wrote it again") from None


def read_status(folder: Path) -> Status:
    """Status of a cell.

    In three cases it is `interrupted`, so that the next run continues the cell and nothing treats it as done: it says
    `running` but no process holds it (it was killed), its tables differ from their checksums, or its status file is
    damaged.
    """
    try:
        content = read_json(folder / "status.json")
        status = Status() if content is None else Status(**content)
    except (UserError, TypeError):
        return Status("interrupted", reason="status.json: damaged; the next `bench run` goes on or does it again")
    if status.state == "running" and not is_locked(folder):
        return replace(status, state="interrupted", reason="its process was killed")
    wrong = [f"{name}.csv" for name, known in status.checksums.items() if _checksum(folder / f"{name}.csv") != known]
    if wrong:
        reason = f"{', '.join(wrong)}: changed or damaged since (checksum); the next `bench run` does the cell again"
        return replace(status, state="interrupted", reason=reason)
    return status


def checksum(path: Path, size: int | None = None) -> str:
    """Checksum of a file, or of its first `size` bytes."""
    with open(path, "rb") as file:
        if size is None:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return hashlib.blake2b(file.read(size), digest_size=16).hexdigest()


def _checksum(path: Path) -> str:
    """The same for a file that is read many times and may be missing."""
    try:
        stat = path.stat()
        return _known_checksum(path, stat.st_size, stat.st_mtime_ns)
    except FileNotFoundError:
        return ""


@functools.cache
def _known_checksum(path: Path, size: int, time: int) -> str:
    return checksum(path, size)


def write_status(folder: Path, status: Status) -> None:
    """Replace `status.json`."""
    write_json(folder / "status.json", asdict(status))


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.rglob(f"*{_TEMPORARY}"):
        _remove(path)


def remove_leftovers(folder: Path, status: Status) -> None:
    """Remove what a cell that is done does not need: checkpoints of rounds before the last, where a kill left them."""
    if status.state == "done":
        with contextlib.suppress(OSError):  # somebody else removed them, or `--keep` asked for the last state
            for path in (folder / "checkpoint").glob("*"):
                if path.name.isdigit() and int(path.name) < status.total:
                    _remove(path)
            (folder / "checkpoint").rmdir()


def _remove(path: Path) -> None:
    """Remove a file, a folder, or a link but not what it leads to."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def remove_cell(folder: Path) -> None:
    """Remove a cell's folder. It is renamed first, so that what a kill leaves is no cell (`removed_cells`).

    Raises:
        BusyError: another process works on the cell.
    """
    gone = folder if folder.name.endswith(REMOVED) else folder.with_name(folder.name + REMOVED)
    with locked(folder):
        if gone != folder and gone.exists():  # of an earlier removal that was killed
            shutil.rmtree(gone)
        folder.rename(gone)
        _remove(gone)
    sync_folder(folder.parent)


def removed_cells(run: Path) -> list[Path]:
    """Folders that were left where the removal of a cell was killed.

    Earlier versions removed file by file: a folder with the name of a cell and no `settings.json` that `run.json` does
    not list is one of theirs.
    """
    listed = {entry["id"] for entry in read_json(run / "run.json")["cells"]}
    return [
        folder
        for folder in sorted(run.iterdir())
        if folder.is_dir() and not folder.is_symlink() and folder.name not in listed and _is_left(folder)
    ]


def _is_left(folder: Path) -> bool:
    if re.fullmatch(rf"[0-9a-f]{{16}}{re.escape(REMOVED)}", folder.name):
        return True
    return bool(re.fullmatch("[0-9a-f]{16}", folder.name)) and not (folder / "settings.json").exists()


def forget(folder: Path) -> None:
    """Remove everything a cell has, but for its lock.

    Raises:
        BusyError: another process works on the cell.
    """
    if not folder.exists():
        return
    with locked(folder):
        for path in folder.iterdir():
            if path.name != _LOCK:
                _remove(path)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a folder against other processes, on this machine and on file systems that share `flock`.

    The kernel lets go of the lock when its process ends, however it ends, so there are no stale locks. The file's text
    (`pid@host`) is for people.

    Raises:
        BusyError: another process holds it, and `wait` is not set.
        UserError: the file system has no locks.
    """
    with open(folder / _LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise BusyError(folder, file.read().strip() or "(no name yet)") from None
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
        with open(folder / _LOCK, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class Tables:
    """The growing tables of a cell, `<name>.csv` each. Floats are written by `repr`: equal values, equal bytes."""

    def __init__(self, folder: Path) -> None:
        self._paths = {name: folder / f"{name}.csv" for name in COLUMNS}

    def restart(self) -> None:
        """Leave only the headers."""
        for name, path in self._paths.items():
            write_text(path, ",".join(COLUMNS[name]) + "\n")

    def append(self, name: str, version: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of one version with a single write.

        Raises:
            ValueError: a row has a column that the table lacks, or lacks one.
        """
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row in rows:
            full = {"round": version, **row}
            if set(full) != set(COLUMNS[name]):
                raise ValueError(f"a row of {name}.csv needs {COLUMNS[name]}, got {tuple(full)}")
            writer.writerow(full[column] for column in COLUMNS[name])
        with open(self._paths[name], "a", encoding="utf-8", newline="") as file:
            file.write(buffer.getvalue())

    def sync(self) -> dict[str, list[Any]]:
        """Bring all tables to the disk and return their sizes in bytes and checksums."""
        marks = {}
        for name, path in self._paths.items():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                marks[name] = [os.fstat(file.fileno()).st_size, checksum(path)]
        return marks

    def cut(self, marks: Mapping[str, Sequence[Any]]) -> bool:
        """Cut every table back to a checkpoint; False (and nothing cut) where one is shorter or other than it was."""
        if set(marks) != set(self._paths) or not all(path.exists() for path in self._paths.values()):
            return False
        if any(checksum(self._paths[name], size) != known for name, (size, known) in marks.items()):
            return False
        for name, (size, _) in marks.items():
            os.truncate(self._paths[name], size)
        return True
