"""Cells side by side: worker processes on one machine, one intra-op thread each, reused from cell to cell.

Each worker has a pipe of its own. A queue shared by all would be left locked by a worker that is killed while it
writes; a pipe just ends, and that is how either side learns of the other's death.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.errors import UserError
from bench.runs import store
from bench.runs.progress import Event
from bench.settings import Settings

STOP_SECONDS = 10.0
"""Time the workers have after Ctrl-C to reach a version boundary and write a checkpoint."""

BUSY_SECONDS = 2.0
"""Time before a cell that another `bench run` holds is looked at again."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

PRELOAD = ["bench.runs.die_with_parent", "bench.runs.cell", "torch._dynamo"]
"""What a worker needs in any case, the last for its first gradient (`torch.func` loads it then)."""

# Importing torch takes seconds and some 200 MB: a server does it once, and workers are forked from it. It has used no
# GPU, as a process that has cannot be forked. Only on Linux do all libraries bear it.
if sys.platform == "linux":
    _PROCESSES = multiprocessing.get_context("forkserver")
else:
    _PROCESSES = multiprocessing.get_context("spawn")
_PROCESSES.set_forkserver_preload(PRELOAD)


@dataclass(frozen=True)
class CellTask:
    """A cell to run; `options` is the JSON of `bench.runs.cell.Options`."""

    settings: Settings
    folder: Path
    options: str


@dataclass(frozen=True)
class _Held:
    """A worker's word that another process, `pid@host`, holds its cell."""

    holder: str


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: CellTask | None = None


def run_cells(
    tasks: Iterable[CellTask], jobs: int, on_event: Callable[[Event], None], unwanted: Collection[str] = ()
) -> bool:
    """Run cells in `jobs` worker processes until none is left; False when the user stopped it.

    The next task is taken when a worker is free for it, so a generator may choose it by what has come out so far. Cells
    that `on_event` puts into `unwanted` (ids) are stopped at their next version boundary.

    A worker that dies fails its cell, and the others go on. Cells held by another process are waited for. The first
    Ctrl-C (or SIGTERM) lets the workers write checkpoints for up to `STOP_SECONDS`, a second one does not wait.
    """
    pool = _Pool(tasks, on_event, unwanted)
    with _terminate_like_interrupt():
        try:
            pool.run(jobs)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                pool.stop()
            return False
        finally:
            pool.close()
    return True


class _Pool:
    """The workers and what is left to do."""

    def __init__(self, tasks: Iterable[CellTask], on_event: Callable[[Event], None], unwanted: Collection[str]) -> None:
        self._tasks = iter(tasks)
        self._returned: deque[CellTask] = deque()
        self._held: list[tuple[float, CellTask]] = []
        self._workers: list[_Worker] = []
        self._on_event = on_event
        self._unwanted = unwanted
        self._last: dict[str, Event] = {}

    def run(self, jobs: int) -> None:
        """Hand out tasks until all have ended."""
        while True:
            self._return_held()
            while self._has_room(jobs) and (task := self._next()):
                self._give(self._idle(), task)
            if not self._held and not self._working():
                return
            self._listen(0.5)

    def stop(self) -> None:
        """Ask the workers to stop at the next version boundary and wait for them."""
        self._tasks = iter(())
        self._returned.clear()
        self._held.clear()
        for worker in self._working():
            worker.pipe.send(None)
        deadline = time.monotonic() + STOP_SECONDS
        while self._working() and time.monotonic() < deadline:
            self._listen(0.2)

    def close(self) -> None:
        """End the workers; what they have not written by now goes on from their last checkpoint."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    def _working(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.task]

    def _has_room(self, jobs: int) -> bool:
        return len(self._working()) < jobs

    def _next(self) -> CellTask | None:
        return self._returned.popleft() if self._returned else next(self._tasks, None)

    def _idle(self) -> _Worker:
        for worker in self._workers:
            if not worker.task:
                return worker
        self._workers.append(_start_worker())
        return self._workers[-1]

    def _give(self, worker: _Worker, task: CellTask) -> None:
        try:
            worker.pipe.send(task)
        except BrokenPipeError:  # it died while it had nothing to do: no cell's fault
            self._returned.appendleft(task)
            self._bury(worker)
        else:
            worker.task = task

    def _return_held(self) -> None:
        now = time.monotonic()
        self._returned.extend(task for due, task in self._held if due <= now)
        self._held = [(due, task) for due, task in self._held if due > now]

    def _listen(self, seconds: float) -> None:
        workers = {worker.pipe: worker for worker in self._workers}
        if not workers:
            time.sleep(seconds)
        for pipe in wait(list(workers), timeout=seconds):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except (EOFError, ConnectionResetError):
                self._bury(workers[pipe])
            else:
                self._hear(workers[pipe], message)

    def _hear(self, worker: _Worker, message: Event | _Held) -> None:
        if isinstance(message, _Held):
            self._put_off(worker, message.holder)
            return
        self._last[message.cell] = message
        self._on_event(message)
        if message.state != "running":
            worker.task = None
        for other in self._working():
            assert other.task is not None
            if other.task.folder.name in self._unwanted:
                with contextlib.suppress(BrokenPipeError):  # a dead one is found out by its pipe
                    other.pipe.send(None)

    def _put_off(self, worker: _Worker, holder: str) -> None:
        """Look at a held cell again later, and say how far its holder is."""
        task, worker.task = worker.task, None
        assert task is not None
        self._held.append((time.monotonic() + BUSY_SECONDS, task))
        done, text = store.read_status(task.folder).rounds, f"held by process {holder}"
        self._on_event(Event(task.folder.name, "running", done, task.settings.rounds, text=text))

    def _bury(self, worker: _Worker) -> None:
        """Note the failure of the cell whose worker has died."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        if worker.task is None:
            return
        reason = _death(worker.process.exitcode)
        folder, rounds = worker.task.folder, worker.task.settings.rounds
        with contextlib.suppress(store.BusyError):
            folder.mkdir(parents=True, exist_ok=True)
            with store.locked(folder):
                status = replace(store.read_status(folder), state="failed", reason=reason, total=rounds)
                store.write_status(folder, status)
                store.write_text(folder / "error.txt", f"{reason}; the last lines of log.txt may tell more\n")
        last = self._last.get(folder.name, Event(folder.name, "failed", 0, rounds))
        self._on_event(replace(last, state="failed", text=reason))


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its worker process was killed by {name}{hint}"
    return f"its worker process ended with exit status {exitcode}"


def start_server() -> None:
    """Start the server that workers are forked from, where there is one and none runs.

    A command calls this before it imports torch itself: the server does the same meanwhile. It is deaf to what reaches
    the whole group until it has, and ends with this thread (`bench.runs.die_with_parent`).
    """
    if _PROCESSES.get_start_method() != "forkserver":
        return
    resource_tracker.ensure_running()  # first, as it ends by letting these signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with _one_thread():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = _PROCESSES.Process(target=_work, args=(theirs,), daemon=True)
    try:
        start_server()
        with _one_thread():
            process.start()
    except (EOFError, ConnectionError):
        raise UserError("no worker process came into being: the server that they are forked from has ended") from None
    theirs.close()
    return _Worker(process, ours)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """What is started meanwhile takes over the environment, and torch reads it at import."""
    before = dict(os.environ)
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _work(pipe: Connection) -> None:
    """A worker's life: take tasks from the pipe, send events, end with the pipe."""
    for sign in _SIGNALS:  # they may reach the whole group; the parent says what to do
        signal.signal(sign, signal.SIG_IGN)
    tasks: queue.SimpleQueue[CellTask] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_take, args=(pipe, tasks, stopping), daemon=True).start()

    import torch

    from bench.runs.cell import Options, run_cell

    torch.set_num_threads(1)
    while True:
        task = tasks.get()
        task.folder.mkdir(parents=True, exist_ok=True)
        with open(task.folder / "log.txt", "a", encoding="utf-8") as log:  # also what C code says before it dies
            sys.stdout.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        options = Options.model_validate_json(task.options)
        try:
            status = run_cell(task.settings, task.folder, options, report=pipe.send, stop=stopping.is_set)
        except store.BusyError as error:
            pipe.send(_Held(error.holder))
            continue
        if status.state == "failed" and status.path.get("device", "cpu") != "cpu":
            return  # an error on the device spoils the whole process; the next cell gets a new one


def _take(pipe: Connection, tasks: "queue.SimpleQueue[CellTask]", stopping: threading.Event) -> None:
    """Hear the parent while a cell runs; without a parent there is nothing to go on for."""
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(1)
        if task is None:
            stopping.set()
        else:
            stopping.clear()  # what was said of the task before
            tasks.put(task)
