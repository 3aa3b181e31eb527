"""The log of a cell: `log.txt` in its folder."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from bench.store import inside


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Send log records and Python warnings to a cell's `log.txt`."""
    stream = inside.append(path)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("bench")
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    logging.getLogger("py.warnings").addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.getLogger("py.warnings").removeHandler(handler)
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
        stream.close()
