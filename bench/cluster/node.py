"""Code that runs on the nodes of a cluster: the check of a node, and the worker that trains.

Ray calls everything here in a separate process. Arguments and answers are plain values, so that even a node with
another version of pFLeague can read them and report the difference.
"""

import contextlib
import functools
import importlib.metadata
import os
import platform
import queue
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster.parcels import FilePart, Link, Report, Sender, write
from bench.data import Dataset
from bench.errors import Lost, UserError
from bench.runs import store
from bench.runs.crew import CellTask, Held
from bench.runs.progress import Event
from bench.runs.provenance import harness_code

if TYPE_CHECKING:
    from bench.cluster.devices import Devices

DATA_ROOT = "BENCH_DATA_ROOT"
"""Environment variable with the data folder of a node, where it is not the one of `--data-root`."""

PREFIX = "pfleague-"
"""First characters of the name of a worker's scratch folder."""

_ABANDONED_SECONDS = 600.0
_HELD = ExitStack()
_VERSIONS = ("torch", "torchvision", "numpy")
_DRIVER = "where the command was given"


@dataclass(frozen=True)
class Broken:
    """Message of a worker: an error outside the training itself ended the cell."""

    reason: str


@dataclass(frozen=True)
class DeviceLost:
    """Message of a worker: another device of its cell was lost."""

    reason: str


NodeMessage = Event | Held | FilePart | Link | Report | Broken | DeviceLost


@dataclass(frozen=True)
class Plugin:
    """A plug-in: its file and the neighbouring modules it imports, as (path relative to its folder, content) pairs."""

    path: str
    files: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Needs:
    """What a run requires on every node.

    Attributes:
        cwd: current directory of the command; relative paths start there.
        versions: result of `versions()` where the command was given.
        harness: result of `harness_code()` there.
        plugins: plug-ins to load.
        code: digests of `bench.config.identity.used_code`.
        data: checksums of data sets, by name and options (`bench.runs.loading.data_of`).
        files: digests, by path, of the files that cells read beside their data: partitions and weights.
        data_root: folder of the data sets.
    """

    cwd: str
    versions: dict[str, str]
    harness: str
    plugins: tuple[Plugin, ...]
    code: dict[tuple[str, str], str]
    data: dict[tuple[str, str], str]
    files: dict[str, str]
    data_root: str


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all nodes. The build of torch (CPU, CUDA) may differ."""
    from bench import __version__

    found = {"pFLeague": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package).partition("+")[0]
    return found


def look(needs: Needs) -> tuple[str, list[tuple[str, str]]]:
    """Check whether this node can run cells.

    Returns:
        A message that says what is wrong (empty if nothing is), and the data sets that are missing here.
    """
    if os.path.isdir(needs.cwd):
        os.chdir(needs.cwd)
    try:
        _same_versions(needs)
        for plugin in needs.plugins:
            _load(plugin)
        _same_code(needs)
        return "", _missing_data(needs)
    except UserError as error:
        return str(error), []


def _same_versions(needs: Needs) -> None:
    own = versions()
    for name, version in needs.versions.items():
        if own.get(name) != version:
            raise UserError(f"{name} is {own.get(name, 'missing')}, and {version} {_DRIVER}")
    if harness_code() != needs.harness:
        place = Path(__file__).parents[2]
        raise UserError(f"pFLeague {own['pFLeague']} in {place} has other source files than {_DRIVER}")


@functools.cache
def _load(plugin: Plugin) -> None:
    """Load a plug-in: from its own path if this node has the same files there, otherwise from a copy."""
    from bench.plugin import load_file

    folder = Path(plugin.path).parent
    if all((folder / name).is_file() for name, _ in plugin.files):
        for name, content in plugin.files:
            if (folder / name).read_bytes() != content:
                raise UserError(f"plug-in {folder / name} is another version than {_DRIVER}")
    else:
        folder = Path(tempfile.mkdtemp(dir=_scratch()))
        for name, content in plugin.files:
            write(folder, FilePart(name, 0, content))
    load_file(folder / Path(plugin.path).name)


def _same_code(needs: Needs) -> None:
    from bench.config.identity import code_of

    for (kind, name), digest in needs.code.items():
        try:
            same = code_of(kind, name) == digest
        except UserError:
            raise UserError(f"{kind} {name!r} is not known here: install its package on this node, too") from None
        if not same:
            raise UserError(f"{kind} {name!r} is another version than {_DRIVER}")


def _missing_data(needs: Needs) -> list[tuple[str, str]]:
    from bench.config.identity import content
    from bench.runs.loading import read_data

    for path, digest in needs.files.items():
        if not Path(path).exists():
            raise UserError(f"{path}, which a cell reads, is not here: copy it to the same place")
        if content(Path(path)) != digest:
            raise UserError(f"{path}, which a cell reads, is another file than {_DRIVER}")
    missing = []
    for (name, options), checksum in needs.data.items():
        try:
            found = read_data(name, options, data_root(needs.data_root)).checksum
        except Exception:  # a loader may raise anything if its files are missing
            missing.append((name, options))
            continue
        if found != checksum:
            raise UserError(f"data set {name!r} has checksum {found} here, and {checksum} {_DRIVER}")
    return missing


def data_root(given: str) -> Path:
    """Return the data folder of this node."""
    return Path(os.environ.get(DATA_ROOT, given))


def provide(name: str, options: str, dataset: Dataset) -> None:
    """Receive a data set that is missing on this node. Ray holds it there once for all workers."""
    from bench.runs import loading

    # copied because arrays in Ray's memory are read-only, which torch does not support
    loading.provide(name, options, replace(dataset, x=dataset.x.copy(), y=dataset.y.copy()))


class CellWorker:
    """An actor that runs one cell after the other. The driver fetches its messages with `take`.

    Args:
        devices: number of devices of a cell, this one included. The others are actors that this one starts, and
            that end with it.
        each: resources of a device, by Ray's names.
    """

    def __init__(self, devices: int, each: dict[str, float]) -> None:
        self._devices, self._each = devices, each
        self._others: Devices | None = None
        self._messages: queue.Queue[NodeMessage] = queue.Queue(8)  # full: the cell waits for the driver
        self._unwanted: set[str] = set()

    def ready(self, needs: Needs, token: tuple[str, str]) -> tuple[str, str, list[tuple[str, str]], bool]:
        """Check the node.

        Args:
            needs: what the node must have.
            token: a file in the run folder and its text, by which the worker recognizes a shared run folder.

        Returns:
            The node's id, what `look` returns (two values), and whether the run folder is shared.
        """
        import ray

        wrong, missing = look(needs)
        if self._devices > 1 and not wrong:
            from bench.cluster.devices import Devices

            self._others = Devices(self._devices - 1, self._each, needs)
        path, text = Path(token[0]), token[1]
        shared = path.is_file() and path.read_text(encoding="utf-8") == text
        return ray.get_runtime_context().get_node_id(), wrong, missing, shared

    def provide(self, name: str, options: str, dataset: Dataset) -> None:
        """Receive a data set that is missing on this node."""
        provide(name, options, dataset)

    def receive(self, cell: str, part: FilePart) -> None:
        """Receive a file of a cell that was begun earlier. Used where the run folder is not shared."""
        write(_scratch() / cell, part)

    def begin(self, task: CellTask, shared: bool) -> None:
        """Start a cell; `take` returns its messages."""
        self._unwanted.discard(task.folder.name)
        threading.Thread(target=self._run, args=(task, shared), daemon=True).start()

    def take(self) -> list[NodeMessage]:
        """Wait for at least one message, and return up to eight."""
        found = [self._messages.get()]
        with contextlib.suppress(queue.Empty):
            while len(found) < 8:
                found.append(self._messages.get_nowait())
        return found

    def stop(self, cell: str) -> None:
        """Make a cell stop after its current server version."""
        self._unwanted.add(cell)

    def _run(self, task: CellTask, shared: bool) -> None:
        cell = task.folder.name
        folder = task.folder if shared else _scratch() / cell
        try:
            self._train(task, folder, self._messages.put if shared else self._send_from(folder))
        except store.BusyError as error:
            self._messages.put(Held(error.holder))
        except Lost as error:
            self._messages.put(DeviceLost(str(error)))
        except Exception as error:  # not from training but from what surrounds it, such as loading a plug-in
            self._messages.put(Broken(str(error) or type(error).__name__))
        if not shared:
            shutil.rmtree(folder, ignore_errors=True)

    def _train(self, task: CellTask, folder: Path, report: Callable[[Event], None]) -> None:
        import torch

        from bench.runs.cell import Options, run_cell

        torch.set_num_threads(1)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "a", encoding="utf-8") as log:  # with what C code prints before it crashes
            sys.stdout.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        print(f"on {socket.gethostname()}, {'in the run folder' if folder == task.folder else 'in scratch space'}")
        sys.stdout.flush()
        options = Options.model_validate_json(task.options)
        options = options.model_copy(update={"data_root": data_root(str(options.data_root))})
        others = self._others
        run_cell(
            task.settings,
            folder,
            options,
            report=report,
            stop=lambda: task.folder.name in self._unwanted,
            helpers=others.take_up if others else None,
        )

    def _send_from(self, folder: Path) -> Callable[[Event], None]:
        sender = Sender(folder)

        def report(event: Event) -> None:
            for part in sender.news():
                self._messages.put(part)
            self._messages.put(sender.report(event))

        return report


@functools.cache
def _scratch() -> Path:
    """Return a folder for this process alone. Also removes the folders that killed processes have left behind."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS and not store.is_locked(old):
                shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _HELD.enter_context(store.locked(folder))
    return folder
