"""Copy a cell's folder from the worker's machine to the run folder on another machine.

Whenever the worker reports, it sends what is new: whole files, or the rows added to a table. In the run folder a whole
file appears only when it is complete, checkpoints and kept models appear as whole folders and after the tables that
they rely on, and the status appears last. So the cell can be continued at whatever moment the worker is lost.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.runs.events import Event
from bench.store import inside, store

CHUNK = 32 * 2**20
"""Most bytes of a file that are sent in one part."""

_GROWING = {*(f"{name}.csv" for name in store.COLUMNS), "log.txt"}
_LAST = ("timing.json", "status.json")
_GENERATIONS = ("checkpoint/", "models/")
"""Folders of folders that were written once and never change: checkpoints, and the kept models of each metric."""


@dataclass(frozen=True)
class FilePart:
    """Some bytes of a file. `name` is relative to the cell's folder."""

    name: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Link:
    """A file `name` with the same content as the file `to`, which is already there or has just been sent."""

    name: str
    to: str


@dataclass(frozen=True)
class Report:
    """The end of one transfer: the names of all files of the cell, and the event that caused the transfer."""

    names: tuple[str, ...]
    event: Event


def read(folder: Path, name: str, offset: int = 0) -> Iterator[FilePart]:
    """Yield a file from `offset` to its end, in parts."""
    with open(folder / name, "rb") as file:
        file.seek(offset)
        while (data := file.read(CHUNK)) or offset == 0:
            yield FilePart(name, offset, data)
            offset += len(data)
            if not data:
                return


def write(folder: Path, part: FilePart) -> None:
    """Write a part of a file at its place. Whatever the file had from there on is removed."""
    path = folder / part.name
    path.parent.mkdir(parents=True, exist_ok=True)
    inside.remove_link(path)
    with open(inside.open_file(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        file.truncate(part.offset)
        file.seek(part.offset)
        file.write(part.data)


def names(folder: Path) -> list[str]:
    """Return the names of all files of a cell, without its lock and half-written files."""
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != "lock" and ".tmp" not in name)


class Sender:
    """The worker's side of the transfer. It is used only while the cell reports, since no file changes then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        came = (name for name in names(folder) if name.startswith(_GENERATIONS))
        self._sent = {name: self._version(name) for name in came}

    def changes(self) -> Iterator[FilePart | Link]:
        """Yield the changes since the last call. Of a table that has only grown, only the new rows are sent."""
        sent_names = {version: name for name, version in self._sent.items()}
        present = names(self._folder)
        for name in present:
            version, earlier = self._version(name), self._sent.get(name)
            if version == earlier:
                continue
            if version in sent_names:
                yield Link(name, sent_names[version])
            else:
                same_file = name in _GROWING and earlier is not None and earlier[0] == version[0]
                grown = same_file and earlier is not None and earlier[1] < version[1]
                yield from read(self._folder, name, earlier[1] if grown and earlier else 0)
            self._sent[name] = version
        self._sent = {name: self._sent[name] for name in present}

    def report(self, event: Event) -> Report:
        """Return the message that ends a transfer."""
        return Report(tuple(names(self._folder)), event)

    def _version(self, name: str) -> tuple[int, int, int]:
        stat = (self._folder / name).stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Receiver:
    """The run folder's side of the transfer; it keeps the cell's folder locked as long as a worker has the cell.

    Raises:
        bench.store.store.BusyError: another process works on the cell.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._new = folder / "arriving.tmp"
        self._arriving: set[str] = set()
        self._lock = ExitStack()
        self._lock.enter_context(store.locked(folder))
        store.remove_temporaries(folder)

    def close(self) -> None:
        """Unlock the folder and delete files that have arrived only in part."""
        shutil.rmtree(self._new, ignore_errors=True)
        self._lock.close()

    def files(self) -> Iterator[FilePart]:
        """Yield the files that a worker needs to continue the cell."""
        for name in names(self._folder):
            yield from read(self._folder, name)

    def receive(self, part: FilePart | Link) -> None:
        """Receive a part. Whole files are set aside until `commit`; new rows are appended to the table at once."""
        if isinstance(part, Link):
            place = self._new / part.name
            place.parent.mkdir(parents=True, exist_ok=True)
            source = (self._new if part.to in self._arriving else self._folder) / part.to
            try:
                os.link(source, place)
            except OSError:  # the file system has no hard links
                shutil.copyfile(source, place)
            self._arriving.add(part.name)
            return
        if part.offset == 0:
            self._arriving.add(part.name)
        write(self._new if part.name in self._arriving else self._folder, part)

    def commit(self, report: Report) -> None:
        """Move the files that have arrived to their places, and delete those that the worker no longer has."""
        generations = {Path(name).parent for name in self._arriving if name.startswith(_GENERATIONS)}
        for name in sorted(self._arriving - set(_LAST)):
            if Path(name).parent not in generations:
                self._replace(Path(name))
        for generation in sorted(generations):
            for file in [*self._folder.glob("*.csv"), *(self._new / generation).iterdir()]:
                _sync(file)
            shutil.rmtree(self._folder / generation, ignore_errors=True)
            self._replace(generation)
        for name in set(names(self._folder)) - set(report.names) - set(_LAST):
            (self._folder / name).unlink()
        self._remove_empty_folders()
        for name in _LAST:
            if name in self._arriving:
                self._replace(Path(name))
        self._arriving.clear()

    def _remove_empty_folders(self) -> None:
        """Remove folders of generations that the worker no longer has, the inner ones first."""
        for name in _GENERATIONS:
            inner = sorted((self._folder / name).rglob("*"), reverse=True)
            for folder in (*inner, self._folder / name):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()

    def _replace(self, name: Path) -> None:
        place = self._folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (self._new / name).is_file():
            _sync(self._new / name)
        os.replace(self._new / name, place)
        inside.sync_folder(place.parent)


def _sync(file: Path) -> None:
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
