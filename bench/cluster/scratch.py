"""The scratch folder of a worker process: for copies of plug-ins and, if the run folder is not shared, for cells."""

import contextlib
import functools
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.store import store

PREFIX = "pfleague-"
"""First characters of the name of a worker's scratch folder."""

_ABANDONED_SECONDS = 600.0
_HELD = ExitStack()


@functools.cache
def scratch() -> Path:
    """Return a folder for this process alone, and remove the folders that killed processes have left behind."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS and not store.is_locked(old):
                shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _HELD.enter_context(store.locked(folder))
    return folder
