"""The process beside a run that keeps its MLflow mirror (bench/runs/mlflow_mirror.py) up to date.

Training never waits for it. It looks at the run folder now and then and writes what is new.
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
from bench.runs.mlflow_mirror import Mirror, embedded_uri, explain, outages, shown

PASS_SECONDS = 10.0
"""Time between two looks at the run folder."""

RETRY_SECONDS = 60.0
"""Time between two attempts while the tracking store does not answer."""

DRAIN_SECONDS = 60.0
"""Longest time that a finished run waits for its mirror."""

STOP_SECONDS = 5.0
"""The same for a run that the user stopped."""

PATIENCE_SECONDS, PATIENCE_SHARE = 2.0, 0.03
"""A server that takes no cell for so long, or for this share of the run's time, is not waited for at the end."""


class Follower:
    """The process that mirrors a run while it goes on. It ends with this process, however that ends.

    Args:
        run: the run folder, with its `run.json`.
        uri: of `choose_store`.
    """

    def __init__(self, run: Path, uri: str) -> None:
        self._run = run
        self._uri = uri
        self._warned = False
        self._began = time.monotonic()
        self._heard: float | None = None
        self._failing = False
        (run / "tracking").mkdir(exist_ok=True)
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_follow, args=(theirs, run, uri), daemon=True)
        self._process.start()
        theirs.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def finish(self, seconds: float) -> None:
        """Let it write what is left, for at most so many seconds. What is missing then is one warning.

        A server that is slow or gone is not waited for so long; the store in the run folder only has to compute.
        """
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its exit status says how
            self._pipe.send(None)
        now = asked = time.monotonic()
        patience = max(PATIENCE_SECONDS, PATIENCE_SHARE * (asked - self._began))
        if self._uri == embedded_uri(self._run):
            patience = seconds
        while self._process.is_alive() and now < asked + seconds:
            if self._failing or (self._heard and now > max(asked, self._heard) + patience):
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
    """The follower's life: sends a line for each failed attempt, "" for what went well; ends at the parent's word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says what to do
    with open(run / "tracking" / "log.txt", "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    finishing = threading.Event()
    threading.Thread(target=_hear, args=(pipe, finishing), daemon=True).start()
    mirror: Mirror | None = None
    alive = functools.partial(pipe.send, "")
    pause, failing, last = 0.0, False, False
    while not last:
        last = finishing.wait(pause)
        if last and failing:
            break  # the user knows what to do about it and need not wait for another attempt
        try:
            if mirror is None:
                mirror = Mirror(run, uri)
                alive()
            mirror.update(alive, skip_new=not last)
        except outages(UserError) as error:
            pause, failing = RETRY_SECONDS, True
            pipe.send(explain(error, uri))
        else:
            pause, failing = PASS_SECONDS, False
    sys.stdout.flush()
    os._exit(0)  # the run waits, and Python needs most of a second to take MLflow's modules apart


def _hear(pipe: Connection, finishing: threading.Event) -> None:
    """Wait for the parent's word; without a parent there is nobody to mirror for."""
    try:
        pipe.recv()
    except (EOFError, ConnectionResetError):
        os._exit(1)
    finishing.set()
