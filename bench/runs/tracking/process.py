"""The process that keeps the MLflow mirror of a run (bench/runs/tracking/mirror.py) up to date.

Training never waits for it. It reads the run folder every few seconds and writes what is new.
"""

import contextlib
import functools
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.errors import UserError
from bench.runs.tracking.mirror import Mirror, embedded_uri, explain, outages, shown
from bench.store import inside

PASS_SECONDS = 10.0
"""Seconds between two readings of the run folder."""

RETRY_SECONDS = 60.0
"""Seconds between two attempts while the tracking store does not answer."""

DRAIN_SECONDS = 60.0
"""Longest time in seconds that a finished run waits for its mirror."""

STOP_SECONDS = 5.0
"""Longest time in seconds that a run waits for its mirror after the user stopped it."""

PATIENCE_SECONDS, PATIENCE_SHARE = 2.0, 0.03
"""A server that accepts nothing for so many seconds, or this share of the run's time, is not waited for at the end."""


class Follower:
    """The process that mirrors a run while it is running. It always ends together with this process.

    Args:
        run: the run folder, with its `run.json`.
        uri: the address of MLflow's store, by `choose_store`.
    """

    def __init__(self, run: Path, uri: str) -> None:
        self._run = run
        self._uri = uri
        self._warned = False
        self._began = time.monotonic()
        self._heard: float | None = None
        self._failing = False
        inside.make_folder(run, run / "tracking")
        self._pipe, child_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_follow, args=(child_end, run, uri), daemon=True)
        self._process.start()
        child_end.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def finish(self, seconds: float) -> None:
        """Let the process write the rest for at most `seconds`, and print one warning if something is missing then.

        A server that is slow or gone gets less time; for the store in the run folder the whole time is allowed.
        """
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit status is looked at below
            self._pipe.send(None)
        now = begin = time.monotonic()
        patience = max(PATIENCE_SECONDS, PATIENCE_SHARE * (begin - self._began))
        if self._uri == embedded_uri(self._run):
            patience = seconds
        while self._process.is_alive() and now < begin + seconds:
            if self._failing or (self._heard and now > max(begin, self._heard) + patience):
                break
            self._process.join(0.05)
            now = time.monotonic()
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            self._warn("it is too slow to have everything by now")
        elif self._process.exitcode != 0:
            self._warn(f"{self._run}/tracking/log.txt says why it ended")
        self._listener.join()
        self._pipe.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                reason = self._pipe.recv()
                self._heard, self._failing = time.monotonic(), bool(reason)
                if reason:
                    self._warn(reason)

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        again = shlex.join(["bench", "track", str(self._run)])
        text = f"warning: tracking in {shown(self._uri)}: {reason}. `{again}` fills in what is missing"
        print(text, file=sys.stderr, flush=True)


def _follow(pipe: Connection, run: Path, uri: str) -> None:
    """Main function of the process: mirror the run until the parent asks for the end.

    Sends a line of text through the pipe for each failed attempt and "" for each success.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
    with inside.append(run / "tracking" / "log.txt") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    finishing = threading.Event()
    threading.Thread(target=_wait_for_end, args=(pipe, finishing), daemon=True).start()
    mirror: Mirror | None = None
    alive = functools.partial(pipe.send, "")
    pause, failing, last = 0.0, False, False
    while not last:
        last = finishing.wait(pause)
        if last and failing:
            break  # the user has been told what to do and need not wait for another attempt
        try:
            if mirror is None:
                import pandas  # noqa: F401  # reads the tables; imported later, it would take of the server's patience

                mirror = Mirror(run, uri)
                alive()
            mirror.update(alive, skip_new=not last)
        except outages(UserError) as error:
            pause, failing = RETRY_SECONDS, True
            pipe.send(explain(error, uri))
        else:
            pause, failing = PASS_SECONDS, False
    sys.stdout.flush()
    os._exit(0)  # the run is waiting, and Python would need most of a second to unload MLflow's modules


def _wait_for_end(pipe: Connection, finishing: threading.Event) -> None:
    """Wait until the parent asks for the end. If the parent is gone, end the process."""
    try:
        pipe.recv()
    except (EOFError, ConnectionResetError):
        os._exit(1)
    finishing.set()
