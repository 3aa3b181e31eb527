"""Features of frozen networks, in files of a run's folder: its cells share them, and memory does not hold them."""

import fcntl
import io
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.data import Array
from bench.store import inside

FOLDER = "features"

log = logging.getLogger(__name__)


class FeatureFiles:
    """A shelf (`bench.federation.features.Shelf`) in the folder of a run, with one file for each key.

    The files may be removed at any time: features are computed again where they are missing or damaged.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run

    def __call__(self, key: str, shape: tuple[int, int], compute: Callable[[], Array]) -> Array:
        """The features of a key, `[n, width]`, as a view of their file; the first to ask computes them, others wait."""
        folder = inside.make_folder(self._run, self._run / FOLDER)
        file = folder / f"{key}.npy"
        with inside.update(folder / f"{key}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = _read(file, shape)
            if kept is not None:
                return kept
            features = compute()
            content = io.BytesIO()
            np.save(content, features, allow_pickle=False)
            try:
                inside.replace(file, content.getvalue(), durable=False)
            except OSError as error:
                log.warning("features are kept in memory, as %s could not be written: %s", file, error)
            kept = _read(file, shape)
            return features if kept is None else kept


def _read(file: Path, shape: tuple[int, int]) -> Array | None:
    """A view of a file's array, whose changes stay in memory; None where there is no such array."""
    if not inside.is_file(file):
        return None
    try:
        kept: Array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return kept if kept.shape == shape else None
