"""The first second of a command that imports torch: it says that it has begun, and Ctrl-C ends it at once."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def starting(text: str, *, quiet: bool) -> Iterator[None]:
    """Print a line, and while nothing is under way that could be lost let Ctrl-C end the process by the signal itself:
    Python would answer only between two calls of C, and libraries take seconds to load."""
    on_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if on_main else None
    if not quiet:
        print(text, file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if on_main:
            signal.signal(signal.SIGINT, before)
