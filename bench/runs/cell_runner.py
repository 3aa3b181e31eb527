"""Interface of the runners of cells, and the parts that both share: the queue of cells and their events.

`bench.runs.workers` uses processes of this machine, `bench.cluster.ray_runner` those of a Ray cluster.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.runs.cell_options import Options
from bench.runs.events import Event
from bench.settings import Settings
from bench.store import inside, store

BUSY_SECONDS = 2.0
"""Seconds before a cell that another `bench run` is running is tried again."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Environment of a process that trains: one intra-op thread, as the recorded path says; libraries read it on import."""


@dataclass(frozen=True)
class CellTask:
    """A cell to run."""

    settings: Settings
    folder: Path
    options: Options


@dataclass(frozen=True)
class HeldElsewhere:
    """A worker's message that another process (`holder`: `pid@host`) is running its cell."""

    holder: str


class CellRunner(Protocol):
    """A runner of cells. `device` and `sharing` (cells at a time on one GPU) go into `cell_options.Options`."""

    device: str
    sharing: int

    def threads(self, cells: int | None) -> int:
        """Return the threads of each cell if `cells` are to run; None means more cells than there is room for."""

    def check(self, cells: Collection[Settings], data_root: Path) -> None:
        """Check that the cells can run, before anything is written.

        Raises:
            UserError: something is missing where cells would run, or has another version.
        """

    def run(self, tasks: Iterable[CellTask], on_event: Callable[[Event], None], unwanted: Collection[str] = ()) -> bool:
        """Run cells until none is left. Returns False if the user stopped the run.

        A task is taken only when a worker is free, so a generator may choose it by the results so far. Cells whose ids
        `on_event` puts into `unwanted` are stopped after their current server version. Cells that another process is
        running are waited for.

        After the first Ctrl-C (or SIGTERM) the workers have time to write checkpoints; a second one does not wait.
        """


class Backlog:
    """The cells that are still to run, and the last event of each cell."""

    def __init__(self, tasks: Iterable[CellTask], on_event: Callable[[Event], None]) -> None:
        self._tasks = iter(tasks)
        self._returned: deque[CellTask] = deque()
        self._held: list[tuple[float, CellTask]] = []
        self._on_event = on_event
        self._last: dict[str, Event] = {}

    @property
    def held(self) -> bool:
        """Whether there are cells that another process holds, to be tried again later."""
        return bool(self._held)

    def next(self) -> CellTask | None:
        """Take the next cell; None where none can start now."""
        now = time.monotonic()
        self._returned.extend(task for due, task in self._held if due <= now)
        self._held = [(due, task) for due, task in self._held if due > now]
        return self._returned.popleft() if self._returned else next(self._tasks, None)

    def put_back(self, task: CellTask) -> None:
        """Put a task that was not run at the front of the queue."""
        self._returned.appendleft(task)

    def postpone(self, task: CellTask, holder: str) -> None:
        """Try a held cell again later, and report how far its holder is."""
        self._held.append((time.monotonic() + BUSY_SECONDS, task))
        rounds, text = store.read_status(task.folder).rounds, f"held by process {holder}"
        self._on_event(Event(task.folder.name, "running", rounds, task.settings.rounds, text=text))

    def clear(self) -> None:
        """Forget all cells that are still to run."""
        self._tasks = iter(())
        self._returned.clear()
        self._held.clear()

    def record(self, event: Event) -> None:
        """Record an event and pass it to the caller."""
        self._last[event.cell] = event
        self._on_event(event)

    def say(self, task: CellTask, state: store.CellState, text: str) -> None:
        """Report the state of a cell whose worker is gone."""
        last = self._last.get(task.folder.name, Event(task.folder.name, state, 0, task.settings.rounds))
        self._on_event(replace(last, state=state, text=text))

    def fail(self, task: CellTask, reason: str) -> None:
        """Record the failure of a cell whose worker is gone."""
        folder = task.folder
        with contextlib.suppress(store.BusyError, FileNotFoundError):  # FileNotFoundError: the run folder is gone
            inside.check_place(folder.parent, folder).mkdir(exist_ok=True)
            with store.locked(folder):
                status = store.read_status(folder)
                store.write_status(folder, replace(status, state="failed", reason=reason, total=task.settings.rounds))
                store.write_text(folder / "error.txt", f"{reason}; the last lines of log.txt may tell more\n")
        self.say(task, "failed", reason)
