"""An end to what a user waits for."""

import contextlib
import signal
import threading
from collections.abc import Iterator

LIMIT = 60.0
"""Seconds after which a dry run ends, whatever the grid."""


class OutOfTimeError(BaseException):
    """Time is over. No `except Exception` on the way takes it for an error of a method."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` after so many seconds, whatever the block does; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
