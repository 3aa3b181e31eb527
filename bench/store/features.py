"""Features of frozen networks, in files of a run's folder: its cells share them, and memory does not hold them."""

import fcntl
import hashlib
import io
import logging
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from bench.data import Array
from bench.store import inside

FOLDER = "features"

log = logging.getLogger(__name__)


class FeatureFiles:
    """A shelf (`bench.federation.features.Shelf`) in the folder of a run, with one file for each key.

    KEY.npy has the features. KEY.lock has their digest and the cells that use them, one a line, and whoever computes
    them holds it. The files may be removed at any time: features are computed again where they are missing, damaged or
    those of another key.

    Args:
        cell: the folder of the cell that uses them, in the run's folder.
        code: digests of the user's own code that computes them: of another one, the same values give other features.
    """

    def __init__(self, cell: Path, code: Iterable[str] = ()) -> None:
        self._run = cell.parent
        self._cell = cell.name
        self._code = "".join(f"-{digest}" for digest in sorted(code))

    def __call__(self, key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
        """The features of a key, `[n, width]`, as a view of their file; the first to ask computes them, others wait."""
        key += self._code
        try:
            folder = inside.make_folder(self._run, self._run / FOLDER)
            lock = inside.update(folder / f"{key}.lock")
        except OSError as error:
            _warn(self._run / FOLDER, error)
            return compute()
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = folder / f"{key}.npy"
            digest, *cells = _lines(lock.buffer.read())  # type: ignore[attr-defined]  # of a text file
            if self._cell not in cells:
                cells = sorted([*cells, self._cell])
                _write(lock, [digest, *cells])
            kept = _read(file, key, shape, digest)
            if kept is not None:
                return kept
            if digest and os.path.lexists(file):
                log.warning("%s holds other bytes than were written there: its features are computed anew", file)
            features = compute()
            content = io.BytesIO()
            np.save(content, features, allow_pickle=False)
            try:
                inside.replace(file, content.getvalue(), durable=False)
                digest = hashlib.blake2b(key.encode() + content.getvalue(), digest_size=16).hexdigest()
                _write(lock, [digest, *cells])
            except OSError as error:
                _warn(file, error)
            kept = _read(file, key, shape, digest)
            return features if kept is None else kept


def unused_files(run: Path, cells: Collection[str]) -> list[Path]:
    """List the files of features that none of these cells uses, those that no cell noted included.

    Args:
        run: the run's folder.
        cells: ids of cells.
    """
    folder = run / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    used = {lock.stem for lock in folder.glob("*.lock") if inside.is_file(lock) and _used(lock, cells)}
    return [file for file in sorted(folder.iterdir()) if file.name.partition(".")[0] not in used]


def _used(lock: Path, cells: Collection[str]) -> bool:
    return not set(cells).isdisjoint(_lines(inside.read_bytes(lock))[1:])


def _lines(content: bytes) -> list[str]:
    """The digest and the cells of a lock file; an empty digest where there is none."""
    return content.decode(errors="replace").splitlines() or [""]


def _write(lock: IO[str], lines: list[str]) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write("".join(f"{line}\n" for line in lines))
    lock.flush()


def _warn(place: Path, error: OSError) -> None:
    log.warning("features are kept in memory, as %s could not be written: %s", place, error)


def _read(file: Path, key: str, shape: tuple[int, int], digest: str) -> Array | None:
    """A view of a file's array, whose changes stay in memory; None where it is not the file of this key and digest."""
    if not inside.is_file(file):
        return None
    with open(inside.open_file(file, os.O_RDONLY), "rb") as content:
        if hashlib.file_digest(content, lambda: hashlib.blake2b(key.encode(), digest_size=16)).hexdigest() != digest:
            return None
    try:
        kept: Array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return kept if kept.shape == shape else None
