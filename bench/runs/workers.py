"""Worker processes that run cells at the same time on one machine. Each uses one intra-op thread and runs many cells.

Each worker has its own pipe. If all shared one queue, a worker killed while writing would leave it locked; a pipe is
closed instead, which tells either side that the other one is gone.
"""

import contextlib
import json
import multiprocessing
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.child_processes import safe_path
from bench.errors import UserError, let_output_degrade
from bench.runs.cell_runner import ONE_THREAD, Backlog, CellTask, HeldElsewhere
from bench.runs.events import Event
from bench.runs.interrupts import supervise
from bench.settings import Settings
from bench.store import inside, store
from bench.store.provenance import cores

STOP_SECONDS = 10.0
"""Seconds after Ctrl-C in which the workers may finish a server version and write a checkpoint."""

FILES, FILES_OF_WORKER = 48, 3
"""Files that a command has open, and those for each of its workers: a pipe, and two ends that say whether it lives."""

_ESTIMATE_SECONDS = 20.0
"""Seconds in which the memory of a grid's cells on a GPU is estimated."""

_BESIDE = 2**30
"""Bytes of a GPU's memory that a process takes for itself: kernels, workspaces, memory between tensors."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

PRELOAD = ["bench.runs.die_with_parent", "bench.runs.cell", "torch._dynamo"]
"""Modules that every worker needs; `torch.func` loads the last one for the first gradient."""

# Importing torch takes seconds and some 200 MB: a server imports it once, and workers are forked from the server. It
# never uses a GPU, because a process that has used one cannot be forked. Only on Linux do all libraries allow this.
if sys.platform == "linux":
    _PROCESSES = multiprocessing.get_context("forkserver")
else:
    _PROCESSES = multiprocessing.get_context("spawn")
_PROCESSES.set_forkserver_preload(PRELOAD)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: CellTask | None = None


class LocalRunner:
    """Worker processes of this machine (`bench.runs.cell_runner.CellRunner`).

    If a worker dies, its cell fails and the other workers continue. When a run is stopped, workers have `STOP_SECONDS`.

    Args:
        jobs: number of cells that run at the same time; default: one per core or, on a GPU, as many of these as it has
            room for.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UserError: there is no such device.
    """

    def __init__(self, jobs: int | None, device: str) -> None:
        self.device, self._jobs = device, jobs
        self.sharing = worker_count(jobs, device)

    def threads(self, cells: int | None) -> int:
        """Return the threads of each cell. With fewer cells than cores, a cell trains several clients at a time."""
        return threads_each(min(self.sharing, cells or self.sharing))

    def check(self, cells: Collection[Settings], data_root: Path) -> None:
        """Find how many cells a GPU has room for; the workers have the same code and data as this process."""
        self.sharing = worker_count(self._jobs, self.device, cells, data_root)

    def run(self, tasks: Iterable[CellTask], on_event: Callable[[Event], None], unwanted: Collection[str] = ()) -> bool:
        """Run cells on the worker processes, in the order of the grid, in which neighbours share recorded steps."""
        allow_open_files(min(self.sharing, len(tasks)) if isinstance(tasks, Sized) else self.sharing)
        return supervise(_Pool(Backlog(tasks, on_event), self.sharing, unwanted))


def worker_count(
    jobs: int | None, device: str, cells: Collection[Settings] = (), data_root: Path = Path("data")
) -> int:
    """Return how many cells run at the same time. Refuses a missing device before anything is written.

    Args:
        cells: those that run; without them it is one on a GPU, unless `jobs` says more.
    """
    from bench.runs.cell_options import choose_device

    kind = choose_device(device)  # also where `jobs` is given, as it refuses what is not there
    return jobs or (_cells_on_gpu(cells, data_root) if kind == "cuda" else cores())


def _cells_on_gpu(cells: Collection[Settings], data_root: Path) -> int:
    """Return how many cells a GPU has room for, if each needs as much as the largest: at most one per core.

    One cell only if that cannot be estimated in a few seconds. As they take no more than half of the memory, none of
    them has to keep its models on the host because of the others, which would be another recorded path.
    """
    import torch

    from bench.runs.forecast.estimate import estimate
    from bench.runs.forecast.timing import kind

    if not cells:
        return 1
    largest, end = 0, time.monotonic() + _ESTIMATE_SECONDS
    try:
        for settings in {kind(cell): cell for cell in cells}.values():
            cost = estimate(settings, data_root, "cuda")
            if cost is None or time.monotonic() > end:
                return 1
            largest = max(largest, cost.gpu)
    except UserError:
        return 1
    room = torch.cuda.mem_get_info()[1] / 2
    return max(1, min(cores(), int(room / (largest + _BESIDE)))) if largest else 1


def allow_open_files(workers: int) -> None:
    """Raise this process's limit of open files as far as its workers need it.

    Raises:
        UserError: the system does not allow so many.
    """
    needed = FILES + FILES_OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard < needed and hard != resource.RLIM_INFINITY:
        possible = (hard - FILES) // FILES_OF_WORKER
        fewer = f"give --jobs {possible}, or " if possible > 0 else ""
        who = "a cell needs" if workers == 1 else f"{workers} cells side by side need"
        raise UserError(
            f"{who} about {needed} open files, and the system allows this process {hard} (ulimit -n): {fewer}raise the "
            "limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def threads_each(side_by_side: int) -> int:
    """Return the threads of each cell. With fewer cells than cores, a cell trains several clients at a time."""
    return max(1, cores() // side_by_side)


class _Pool:
    """All worker processes of a run and the cells they work on (`bench.runs.cell_runner.Workers`)."""

    def __init__(self, backlog: Backlog, jobs: int, unwanted: Collection[str]) -> None:
        self._backlog = backlog
        self._jobs = jobs
        self._workers: list[_Worker] = []
        self._unwanted = unwanted

    def run(self) -> None:
        """Hand out tasks until all have ended."""
        while True:
            while self._has_room() and (task := self._backlog.next()):
                self._give(self._idle(), task)
            if not self._backlog.held and not self._working():
                return
            self._listen(0.5)

    def stop(self) -> None:
        """Ask the workers to stop after their current server version, and wait for them."""
        self._backlog.clear()
        for worker in self._working():
            worker.pipe.send(None)
        deadline = time.monotonic() + STOP_SECONDS
        while self._working() and time.monotonic() < deadline:
            self._listen(0.2)

    def close(self) -> None:
        """End the workers. A cell that is not finished continues from its last checkpoint next time."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    def _working(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.task]

    def _has_room(self) -> bool:
        return len(self._working()) < self._jobs

    def _idle(self) -> _Worker:
        for worker in self._workers:
            if not worker.task:
                return worker
        self._workers.append(_start_worker())
        return self._workers[-1]

    def _give(self, worker: _Worker, task: CellTask) -> None:
        try:
            worker.pipe.send(task)
        except BrokenPipeError:  # it died while idle, so no cell is to blame
            self._backlog.put_back(task)
            self._worker_died(worker)
        else:
            worker.task = task

    def _listen(self, seconds: float) -> None:
        workers = {worker.pipe: worker for worker in self._workers}
        if not workers:
            time.sleep(seconds)
        for pipe in wait(list(workers), timeout=seconds):
            assert isinstance(pipe, Connection)
            try:
                message = _decode(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                self._worker_died(workers[pipe])
            except (TypeError, ValueError):  # a plug-in wrote to the pipe
                workers[pipe].process.kill()
                self._worker_died(workers[pipe])
            else:
                self._handle(workers[pipe], message)

    def _handle(self, worker: _Worker, message: Event | HeldElsewhere) -> None:
        if isinstance(message, HeldElsewhere):
            task, worker.task = worker.task, None
            assert task is not None
            self._backlog.postpone(task, message.holder)
            return
        self._backlog.record(message)
        if message.state != "running":
            worker.task = None
        for busy_worker in self._working():
            assert busy_worker.task is not None
            if busy_worker.task.folder.name in self._unwanted:
                with contextlib.suppress(BrokenPipeError):  # its closed pipe will show that it is dead
                    busy_worker.pipe.send(None)

    def _worker_died(self, worker: _Worker) -> None:
        """Mark the cell of a dead worker as failed."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        if worker.task is not None:
            self._backlog.fail(worker.task, _death(worker.process.exitcode))


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its worker process was killed by {name}{hint}"
    return f"its worker process ended with exit status {exitcode}"


def start_server() -> None:
    """Start the server from which workers are forked, unless it runs already or the platform does not use one.

    A command calls this before it imports torch, so that both import it at the same time. Until it has done so, the
    server ignores signals sent to the whole process group. It ends with this thread (`bench.runs.die_with_parent`).
    """
    if _PROCESSES.get_start_method() != "forkserver":
        return
    resource_tracker.ensure_running()  # first, because it unblocks these signals when it is done
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        with _one_thread():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker() -> _Worker:
    parent_end, worker_end = multiprocessing.Pipe()
    process = _PROCESSES.Process(target=_work, args=(worker_end,), daemon=True)
    try:
        start_server()
        with _one_thread():
            process.start()
    except (EOFError, ConnectionError):
        raise UserError("no worker process could start: the server that forks them has ended") from None
    worker_end.close()
    return _Worker(process, parent_end)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Set the environment for processes started inside the block; torch reads it when it is imported."""
    environment = dict(os.environ)
    os.environ.update(ONE_THREAD | safe_path())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)


def _work(pipe: Connection) -> None:
    """Main function of a worker: run the tasks that come through the pipe and send events until the pipe is closed."""
    for sign in _SIGNALS:  # signals may reach the whole group; the parent decides what to do
        signal.signal(sign, signal.SIG_IGN)
    tasks: queue.SimpleQueue[CellTask] = queue.SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_take, args=(pipe, tasks, stopping), daemon=True).start()

    from bench.runs.cell import run_cell

    def report(event: Event) -> None:
        pipe.send_bytes(_encode(event))

    let_output_degrade()  # a method may print
    while True:
        task = tasks.get()
        if not task.folder.parent.is_dir():
            return  # the run's folder is gone; another one would be filled in vain
        task.folder.mkdir(exist_ok=True)
        with inside.append(task.folder / "log.txt") as log:  # also what C code says before it dies
            sys.stdout.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            status = run_cell(task.settings, task.folder, task.options, report=report, stop=stopping.is_set)
        except store.BusyError as error:
            pipe.send_bytes(_encode(HeldElsewhere(error.holder)))
            continue
        if status.state == "failed" and status.path.get("device", "cpu") != "cpu":
            return  # an error on the device spoils the whole process; the next cell gets a new one


def _encode(message: Event | HeldElsewhere) -> bytes:
    """A worker's message as JSON: unpickled, one of a plug-in's could run code in the process that scores blind."""
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def _decode(message: bytes) -> Event | HeldElsewhere:
    kind, content = json.loads(message)
    return Event(**content) if kind == Event.__name__ else HeldElsewhere(**content)


def _take(pipe: Connection, tasks: "queue.SimpleQueue[CellTask]", stopping: threading.Event) -> None:
    """Receive messages of the parent while a cell runs. If the parent is gone, end the process."""
    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionResetError):
            os._exit(1)
        if task is None:
            stopping.set()
        else:
            stopping.clear()  # a stop request for the previous task
            tasks.put(task)
