"""Ctrl-C and SIGTERM: a command that has not begun ends at once; later workers stop at a round's end and write
checkpoints, and a second signal does not wait."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn, Protocol


def end_at_once(*_: object) -> NoReturn:
    """End the process at Ctrl-C before there is a command, whose imports would show a traceback."""
    os.write(2, b"stopped\n")
    os._exit(130)


def interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
    """Raise Ctrl-C once more, a moment after Python drops it in a destructor or in the callback of a weak reference."""
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(dropped)


class Workers(Protocol):
    """Workers that are running cells."""

    def run(self) -> None:
        """Hand out cells until all have ended."""

    def stop(self) -> None:
        """Let the cells stop at their next version boundary, and wait for a while until they have."""

    def close(self) -> None:
        """End the workers; cells that have not ended will go on from their last checkpoints."""


def supervise(workers: Workers) -> bool:
    """Let workers run to the end; False when the user stopped them (Ctrl-C or SIGTERM)."""
    with _terminate_like_interrupt():
        try:
            workers.run()
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                text = "stopping: cells end their round and write a checkpoint; Ctrl-C again does not wait"
                print(text, file=sys.stderr, flush=True)
                workers.stop()
            return False
        finally:
            workers.close()
    return True


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise a `KeyboardInterrupt` of Ctrl-C or SIGTERM only at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = {sign: signal.signal(sign, lambda number, _: interrupts.append(number)) for sign in signals}
    try:
        yield
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
    if interrupts:
        raise KeyboardInterrupt
