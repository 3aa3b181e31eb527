"""Checkpoints of a cell: two generations, each a folder that appears as a whole and carries its checksums.

`checkpoint/<version>/` holds one `<group>.pt` per tensor group (the part of a tensor's name before the first `/`, or
`state`), `state.json` with everything that is not a tensor, and `manifest.json` with the checksum of each. Tensors go
through `torch.save` and come back through `torch.load(weights_only=True)`: nothing is unpickled, and storage shared
between tensors of a group is stored once.

A thread writes while the cell trains. State is replaced and never changed in place (`bench check-method` tests it), so
on the host the thread reads the cell's own tensors, which stay as they were; those on a GPU are first copied to the
host, because they would take the room of what replaces them.
"""

import contextlib
import json
import logging
import os
import pickle
import shutil
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from bench.store import inside
from bench.store.inside import sync_folder
from bench.store.store import GENERATIONS, checksum

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A cell's state at a version boundary; `rest` is JSON-able."""

    version: int
    tensors: dict[str, torch.Tensor]
    rest: dict[str, Any]


class _Group(NamedTuple):
    """The content of one file of a generation.

    Attributes:
        tensors: by name; they do not change while training goes on.
        known: the cell's own tensors, by which a later generation finds out that the group has not changed.
        unchanged: whether the previous generation has the same file.
    """

    tensors: dict[str, torch.Tensor]
    known: dict[str, weakref.ref[torch.Tensor]]
    unchanged: bool


class Writer:
    """Writes the generations of one cell, one at a time. A group whose tensors are still the same objects is linked,
    not written.

    As a context it waits at its end for what is being written.

    Attributes:
        publishing: a lock that is held while whole generations appear and vanish. Who reads the folder holds it, too.
    """

    def __init__(self, folder: Path) -> None:
        self.publishing = threading.Lock()
        self._folder = folder
        self._last: Path | None = None
        self._written: dict[str, dict[str, weakref.ref[torch.Tensor]]] = {}
        self._checksums: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:  # otherwise that one counts: it ended the cell
                raise
            log.warning("nor could the checkpoint be written", exc_info=True)

    def save(self, checkpoint: Checkpoint, *, generations: int = GENERATIONS) -> None:
        """Add a generation, then remove all but the newest ones; if the process is killed meanwhile, the older ones
        remain."""
        self.start(checkpoint, generations=generations)
        self.wait()

    def start(self, checkpoint: Checkpoint, *, generations: int = GENERATIONS) -> None:
        """Begin to add a generation beside the training, which may go on when this returns.

        This first waits for the generation before, so that at most one is held, and raises the error that ended it.
        """
        self.wait()
        groups = {name: self._group(name, tensors) for name, tensors in _groups(checkpoint.tensors).items()}
        if any(t.device.type == "cuda" for t in checkpoint.tensors.values()):
            torch.cuda.synchronize()
        state = json.dumps({"version": checkpoint.version, "rest": checkpoint.rest})
        self._under_way = self._thread.submit(self._write, checkpoint.version, state, groups, generations)

    def wait(self) -> None:
        """Wait for the generation that is being written, and raise the error that ended it."""
        under_way, self._under_way = self._under_way, None
        if under_way:
            under_way.result()

    def _group(self, name: str, tensors: dict[str, torch.Tensor]) -> _Group:
        earlier = self._written.get(name, {})
        unchanged = earlier.keys() == tensors.keys() and all(earlier[n]() is t for n, t in tensors.items())
        held = tensors if unchanged else {n: _on_host(t) for n, t in tensors.items()}
        return _Group(held, {n: weakref.ref(t) for n, t in tensors.items()}, unchanged)

    def _write(self, version: int, state: str, groups: dict[str, _Group], generations: int) -> None:
        inside.make_folder(self._folder.parent, self._folder)
        final = self._folder / name_of(version)
        temporary = final.with_name(final.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        checksums, written = {}, {}
        for name in list(groups):
            group = groups.pop(name)  # so that the memory of what is written becomes free
            checksums[f"{name}.pt"], written[name] = self._file(f"{name}.pt", group, temporary), group.known
        (temporary / "state.json").write_text(state, encoding="utf-8")
        checksums["state.json"] = checksum(temporary / "state.json")
        (temporary / "manifest.json").write_text(json.dumps(checksums, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        with self.publishing:
            shutil.rmtree(final, ignore_errors=True)
            os.replace(temporary, final)
            sync_folder(self._folder)
            self._last, self._checksums, self._written = final, checksums, written
            for old in _newest_first(self._folder)[generations:]:
                shutil.rmtree(old)

    def _file(self, name: str, group: _Group, into: Path) -> str:
        """Link or write the file of a group, and return its checksum."""
        if self._last and group.unchanged:
            with contextlib.suppress(OSError):  # a file system without links, or a generation that somebody removed
                os.link(self._last / name, into / name)
                return self._checksums[name]
        # A row of a cohort's matrix is a view; a copy keeps the rest of the matrix out of the file.
        torch.save({n: t.detach().clone() for n, t in group.tensors.items()}, into / name)
        return checksum(into / name)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of a GPU to pinned memory; tensors of the host stay as they are.

    The GPU writes the copy by itself, so it may be read only after waiting for the GPU.
    """
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor.detach(), non_blocking=True)


def name_of(version: int) -> str:
    """The name of a generation's folder."""
    return f"{version:08d}"


def load(folder: Path) -> Iterator[Checkpoint]:
    """Read the undamaged generations, newest first, tensors on the CPU; a damaged one is logged and skipped."""
    for path in _newest_first(folder):
        problem = _problem(path)
        if problem:
            log.warning("checkpoint %s is damaged (%s): taking the one before it", path.name, problem)
            continue
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        tensors: dict[str, torch.Tensor] = {}
        try:
            for file in sorted(path.glob("*.pt")):
                tensors.update(torch.load(file, map_location="cpu", weights_only=True))
        except pickle.UnpicklingError:
            log.warning("checkpoint %s holds something else than tensors: taking the one before it", path.name)
            continue
        yield Checkpoint(state["version"], tensors, state["rest"])


def remove(folder: Path) -> None:
    """Remove all generations."""
    shutil.rmtree(folder, ignore_errors=True)


def _groups(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    groups: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        groups[name.partition("/")[0] if "/" in name else "state"][name] = tensor
    return groups


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: path.name, reverse=True)


def _problem(path: Path) -> str:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"manifest.json: {error}"
    present = {file.name for file in path.iterdir() if inside.is_file(file)} - {"manifest.json"}
    if not isinstance(manifest, dict) or set(manifest) != present or "state.json" not in present:
        return "files are missing"
    wrong = [name for name, digest in manifest.items() if checksum(path / name) != digest]
    return f"checksum of {', '.join(wrong)}" if wrong else ""
