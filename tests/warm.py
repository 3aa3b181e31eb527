"""Commands in separate processes, forked from one that has imported torch, which saves seconds of imports in each.

It is the real command line with real arguments, streams, signals and exit statuses, and its own server and workers.
How a command starts can only be tested in a new interpreter; such tests use `fresh` of tests/conftest.py.
"""

import atexit
import concurrent.futures
import contextlib
import gc
import importlib
import json
import multiprocessing.util
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

# Modules that commands import when they are called, besides those that the server of workers imports.
PRELOAD = [
    "bench.runs.cell",
    "bench.conformance.suite",
    "bench.results.results",
    "bench.runs.tracking.mirror",
    "reports.page.page",
    "sweeps.run",
]
PRELOAD += ["optuna.storages", "sklearn.cluster", "sqlalchemy.dialects.sqlite", "torch._dynamo"]


PATIENCE = 600.0
"""Seconds after which a process is taken for one that never ends: more than ten times what any takes that does."""


class Command:
    """A running command in its own process group; it has those methods of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: list[str], status: int, out: int, err: int) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self.stdout, self.stderr, self._status = (os.fdopen(pipe, encoding="utf-8") for pipe in (out, err, status))
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """The exit status if it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        if (found := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return found

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return what it wrote.

        Raises:
            subprocess.TimeoutExpired: it is still running; it is killed with all processes that it has started.
        """
        with concurrent.futures.ThreadPoolExecutor(2) as readers:
            texts = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            if concurrent.futures.wait(texts, timeout).not_done:
                os.killpg(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return texts[0].result(), texts[1].result()

    def kill(self) -> None:
        """Kill it, but not the processes that it has started."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        for stream in (self.stdout, self.stderr, self._status):
            stream.close()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode


Started = Command | subprocess.Popen[str]
Start = Callable[..., Started]


class Warm:
    """The process that commands are forked from."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, cwd=root, env=dict(environment), pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> Command:
        """Start the command `bench` in a folder, with these environment variables in addition to those of this
        process."""
        (out, its_out), (err, its_err), (status, its_status) = (os.pipe() for _ in range(3))
        request = json.dumps({"arguments": arguments, "folder": str(folder), "environment": dict(environment or {})})
        socket.send_fds(self._channel, [request.encode()], [its_out, its_err, its_status])
        for pipe in (its_out, its_err, its_status):
            os.close(pipe)
        return Command(arguments, status, out, err)

    def end(self) -> None:
        """End it."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


def serve(channel: socket.socket) -> None:
    """Fork a process for each command asked for; returns in that process, ready to call `main`."""
    while True:
        text, pipes, _, _ = socket.recv_fds(channel, 2**16, 3)
        if not text:
            sys.exit()
        if os.fork() == 0:
            channel.close()
            _accompany(json.loads(text), *pipes)
            return
        for pipe in pipes:
            os.close(pipe)
        with contextlib.suppress(ChildProcessError):  # no child is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _accompany(request: dict[str, Any], out: int, err: int, status: int) -> None:
    """Fork the command's process and return in it; this process sends its process id and, at the end, its exit
    status."""
    if pid := os.fork():
        os.close(out)
        os.close(err)
        os.write(status, f"{pid}\n".encode())
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, f"{ended}\n".encode())
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for pipe, place in ((out, 1), (err, 2)):
        os.dup2(pipe, place)
        os.close(pipe)
    os.close(status)
    sys.argv = ["bench", *request["arguments"]]


_spawn = multiprocessing.util.spawnv_passfds


def _fork_server(path: bytes, args: list[str], passed: list[int]) -> int:
    """Fork a server of worker processes from the command; start all other processes as new interpreters, as usual."""
    if "forkserver" not in args[-1] or threading.active_count() > 1:
        return _spawn(path, args, passed)
    if pid := os.fork():
        return pid
    try:
        for pipe in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *passed}:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(pipe)
        exec(args[-1], {})
    finally:
        os._exit(1)


def _leave(status: int) -> NoReturn:
    """End the process as the interpreter would, but for taking its modules apart: that writes to every page of memory
    that the fork shares, and costs more than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    for name in PRELOAD:
        importlib.import_module(name)
    multiprocessing.util.spawnv_passfds = _fork_server
    gc.freeze()  # else the first collection of a command writes to every page, too
    serve(socket.socket(fileno=int(sys.argv[1])))

    from bench.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _leave(end.code or 0)
        raise
