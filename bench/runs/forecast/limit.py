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
    """Raise `OutOfTimeError` after so many seconds, whatever the block does; only the main thread can.

    Code that Python calls back (a finaliser, a serialiser's callback) may swallow the error: so the alarm rings again
    each second, and the error is raised at the end of a block in which it rang.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    rang = False

    def ring(_signal: int, _frame: object) -> None:
        nonlocal rang
        rang = True
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds), 1.0)
    try:
        try:
            yield
            if rang:
                raise OutOfTimeError
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # the alarm may have rung just before that line; it does not ring again within a second
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
