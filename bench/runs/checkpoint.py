"""Checkpoints of a cell: two generations, each a folder that appears as a whole and carries its checksums.

`checkpoint/<version>/` holds one `<group>.pt` per tensor group (the part of a tensor's name before the first `/`, or
`state`), `state.json` with everything that is not a tensor, and `manifest.json` with the checksum of each. Tensors go
through `torch.save` and come back through `torch.load(weights_only=True)`: nothing is unpickled, and storage shared
between tensors of a group is stored once.
"""

import contextlib
import json
import logging
import os
import pickle
import shutil
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.runs.store import checksum, sync_folder

GENERATIONS = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A cell's state at a version boundary; `rest` is JSON-able."""

    version: int
    tensors: dict[str, torch.Tensor]
    rest: dict[str, Any]


class Writer:
    """Writes the generations of one cell. A group whose tensors are still the same objects is linked, not written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: Path | None = None
        self._written: dict[str, dict[str, weakref.ref[torch.Tensor]]] = {}
        self._checksums: dict[str, str] = {}

    def save(self, checkpoint: Checkpoint, *, generations: int = GENERATIONS) -> None:
        """Add a generation, then remove all but the newest ones; if the process is killed meanwhile, the older ones
        remain."""
        self._folder.mkdir(exist_ok=True)
        final = self._folder / f"{checkpoint.version:08d}"
        temporary = final.with_name(final.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        groups = _groups(checkpoint.tensors)
        checksums = {f"{group}.pt": self._group(group, tensors, temporary) for group, tensors in groups.items()}
        state = {"version": checkpoint.version, "rest": checkpoint.rest}
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
        checksums["state.json"] = checksum(temporary / "state.json")
        (temporary / "manifest.json").write_text(json.dumps(checksums, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        sync_folder(self._folder)
        self._last, self._checksums = final, checksums
        self._written = {group: {n: weakref.ref(t) for n, t in tensors.items()} for group, tensors in groups.items()}
        for old in _newest_first(self._folder)[generations:]:
            shutil.rmtree(old)

    def _group(self, group: str, tensors: dict[str, torch.Tensor], into: Path) -> str:
        """Link or write the file of a group, and return its checksum. State is never changed in place, so the same
        object has the same bytes."""
        name = f"{group}.pt"
        before = self._written.get(group, {})
        if self._last and before.keys() == tensors.keys() and all(before[n]() is t for n, t in tensors.items()):
            with contextlib.suppress(OSError):  # a file system without links, or a generation that somebody removed
                os.link(self._last / name, into / name)
                return self._checksums[name]
        # A row of a cohort's matrix is a view; a copy keeps the rest of the matrix out of the file.
        torch.save({n: t.detach().clone() for n, t in tensors.items()}, into / name)
        return checksum(into / name)


def load(folder: Path) -> Iterator[Checkpoint]:
    """The undamaged generations, newest first, tensors on the CPU; a damaged one is logged and skipped."""
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
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: path.name, reverse=True)


def _problem(path: Path) -> str:
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"manifest.json: {error}"
    present = {file.name for file in path.iterdir()} - {"manifest.json"}
    if not isinstance(manifest, dict) or set(manifest) != present or "state.json" not in present:
        return "files are missing"
    wrong = [name for name, known in manifest.items() if checksum(path / name) != known]
    return f"checksum of {', '.join(wrong)}" if wrong else ""
