"""Commands and scripts in separate processes, forked from one that has imported torch, which saves seconds of imports.

It is the real command line with real arguments, streams, signals and exit statuses, and its own server and workers,
which know nothing that the command or the script has defined or loaded. How a command starts can only be tested in a
new interpreter; such tests use `fresh` of tests/conftest.py.
"""

import atexit
import concurrent.futures
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.process
import multiprocessing.util
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

# Modules that commands import when they are called, besides those that the server of workers imports.
PRELOAD = [
    "bench.runs.cell",
    "bench.conformance.suite",
    "bench.results.results",
    "bench.runs.tracking",
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
Python = Callable[..., "subprocess.CompletedProcess[str]"]


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
        return self._start(["bench", *arguments], folder, environment)

    def python(self, arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> Command:
        """Start a script, or code after `-c`, as the interpreter would."""
        return self._start(["python", *arguments], folder, environment)

    def _start(self, arguments: list[str], folder: Path, environment: Mapping[str, str] | None) -> Command:
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


def serve(channel: socket.socket) -> list[str]:
    """Fork a process for each command asked for; returns the command's words in that process."""
    while True:
        text, pipes, _, _ = socket.recv_fds(channel, 2**16, 3)
        if not text:
            sys.exit()
        if os.fork() == 0:
            channel.close()
            request = json.loads(text)
            _accompany(request, *pipes)
            return list(request["arguments"])
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
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # what workers take for the folder where Python started
    os.environ.update(request["environment"])
    for pipe, place in ((out, 1), (err, 2)):
        os.dup2(pipe, place)
        os.close(pipe)
    os.close(status)
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)[::-1]:
        if folder and folder not in sys.path:
            sys.path.insert(1, folder)


class Spare:
    """A process that is forked before the command does anything, and becomes its server of worker processes."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._spawn = multiprocessing.util.spawnv_passfds
        self.pid: int | None = os.fork()
        if self.pid == 0:
            self._channel.close()
            try:
                self._serve(theirs)
            finally:
                os._exit(1)
        theirs.close()

    def spawn(self, path: bytes, args: list[str], passed: list[int]) -> int:
        """Let this process be the server of workers; start all other processes as new interpreters, as usual."""
        if "forkserver" not in args[-1] or self.pid is None:
            return self._spawn(path, args, passed)
        request = {"code": args[-1], "pipes": [*passed], "folder": os.getcwd(), "environment": dict(os.environ)}
        with self._channel:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [*passed])
        pid, self.pid = self.pid, None
        return pid

    def _serve(self, channel: socket.socket) -> None:
        # Until it serves, signals to the command's group are not meant for it, nor are they later for its workers.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        text, pipes, _, _ = socket.recv_fds(channel, 2**16, 64)
        if not text:  # the command has ended without workers
            return
        request = json.loads(text)
        channel.close()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        apart = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 1000) for pipe in pipes]  # none is in the place of another
        os.closerange(3, 1000)
        for pipe, place in zip(apart, request["pipes"], strict=True):
            os.dup2(pipe, place)
            os.close(pipe)
        exec(request["code"], {})


def _run(arguments: list[str]) -> None:
    """Run a script, or code after `-c`, as the module `__main__`."""
    module = types.ModuleType("__main__")
    if arguments[0] == "-c":
        text, name, sys.path[0] = arguments[1], "<string>", ""
        sys.argv = ["-c", *arguments[2:]]
    else:
        name = module.__file__ = os.path.abspath(arguments[0])
        text, sys.path[0], sys.argv = Path(name).read_text(encoding="utf-8"), os.path.dirname(name), arguments
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)


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
    importlib.import_module("tests.drawn").look_at_pictures()
    gc.freeze()  # else the first collection of a command writes to every page, too
    program, *words = serve(socket.socket(fileno=int(sys.argv[1])))
    multiprocessing.util.spawnv_passfds = Spare().spawn

    from bench.cli import main

    try:
        if program == "python":
            _run(words)
        else:
            sys.argv = [program, *words]
            main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            _leave(end.code or 0)
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        _leave(1)
    _leave(0)
