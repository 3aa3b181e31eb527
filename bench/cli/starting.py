"""The first seconds of a command, while it imports torch: it prints that it has begun, and Ctrl-C ends it at once."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def starting(text: str, *, quiet: bool) -> Iterator[None]:
    """Print `text`, and inside the block let Ctrl-C kill the process directly, as no work can be lost yet.

    Python's own handler would react only after the current C call, and loading a library takes seconds.
    """
    on_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL) if on_main else None
    if not quiet:
        print(text, file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if on_main:
            signal.signal(signal.SIGINT, handler)
