"""The worker that trains cells on a node of a cluster.

Ray calls everything here in a separate process. Arguments and answers are plain values, so that even a node with
another version of pFLeague can read them and report the difference.
"""

import contextlib
import os
import queue
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster.requirements import Needs, check_node, data_root, provide, scratch
from bench.cluster.transfer import FilePart, Link, Report, Sender, write
from bench.data import Dataset
from bench.errors import Lost, UserError
from bench.runs.cell_runner import CellTask, HeldElsewhere
from bench.runs.events import Event
from bench.store import inside, store

if TYPE_CHECKING:
    from bench.cluster.devices import Devices


@dataclass(frozen=True)
class Broken:
    """Message of a worker: an error outside the training itself ended the cell, such as the loss of another device."""

    reason: str
    device_lost: bool = False


NodeMessage = Event | HeldElsewhere | FilePart | Link | Report | Broken


class CellWorker:
    """An actor that runs one cell after the other. The driver fetches its messages with `take`.

    Args:
        devices: number of devices of a cell, this one included. The others are actors that this one starts, and
            that end with it.
        each: resources of a device, by Ray's names.
    """

    def __init__(self, devices: int, each: dict[str, float]) -> None:
        self._devices, self._each = devices, each
        self._others: Devices | None = None
        self._messages: queue.Queue[NodeMessage] = queue.Queue(8)  # full: the cell waits for the driver
        self._unwanted: set[str] = set()

    def ready(self, needs: Needs, token: tuple[str, str]) -> tuple[str, str, list[tuple[str, str]], bool]:
        """Check the node.

        Args:
            needs: what the node must have.
            token: a file in the run folder and its text, by which the worker recognizes a shared run folder.

        Returns:
            The node's id, what `check_node` returns (two values), and whether the run folder is shared.
        """
        import ray

        wrong, missing = check_node(needs)
        wrong = wrong or self._without_gpu()
        if self._devices > 1 and not wrong:
            from bench.cluster.devices import Devices

            self._others = Devices(self._devices - 1, self._each, needs)
        path, text = Path(token[0]), token[1]
        shared = path.is_file() and path.read_text(encoding="utf-8") == text
        return ray.get_runtime_context().get_node_id(), wrong, missing, shared

    def _without_gpu(self) -> str:
        """Say what is wrong where Ray gives a GPU in which torch cannot compute; else an empty string."""
        from bench.runs.cell_options import choose_device

        try:
            choose_device("cuda" if self._each.get("GPU") else "cpu")
        except UserError as error:
            return str(error)
        return ""

    def provide(self, name: str, options: str, dataset: Dataset) -> None:
        """Receive a data set that is missing on this node."""
        provide(name, options, dataset)

    def receive(self, cell: str, part: FilePart) -> None:
        """Receive a file of a cell that was begun earlier. Used where the run folder is not shared."""
        write(scratch() / cell, part)

    def begin(self, task: CellTask, shared: bool) -> None:
        """Start a cell; `take` returns its messages."""
        self._unwanted.discard(task.folder.name)
        threading.Thread(target=self._run, args=(task, shared), daemon=True).start()

    def take(self) -> list[NodeMessage]:
        """Wait for at least one message, and return up to eight."""
        messages = [self._messages.get()]
        with contextlib.suppress(queue.Empty):
            while len(messages) < 8:
                messages.append(self._messages.get_nowait())
        return messages

    def stop(self, cell: str) -> None:
        """Make a cell stop after its current server version."""
        self._unwanted.add(cell)

    def _run(self, task: CellTask, shared: bool) -> None:
        cell = task.folder.name
        folder = task.folder if shared else scratch() / cell
        try:
            self._train(task, folder, self._messages.put if shared else self._send_from(folder))
        except store.BusyError as error:
            self._messages.put(HeldElsewhere(error.holder))
        except Lost as error:
            self._messages.put(Broken(str(error), device_lost=True))
        except Exception as error:  # not from training but from what surrounds it, such as loading a plug-in
            self._messages.put(Broken(str(error) or type(error).__name__))
        if not shared:
            shutil.rmtree(folder, ignore_errors=True)

    def _train(self, task: CellTask, folder: Path, report: Callable[[Event], None]) -> None:
        from bench.runs.cell import run_cell

        folder.mkdir(parents=True, exist_ok=True)
        with inside.append(folder / "log.txt") as log:  # with what C code prints before it crashes
            sys.stdout.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        print(f"on {socket.gethostname()}, {'in the run folder' if folder == task.folder else 'in scratch space'}")
        sys.stdout.flush()
        options = task.options.model_copy(update={"data_root": data_root(str(task.options.data_root))})
        others = self._others
        run_cell(
            task.settings,
            folder,
            options,
            report=report,
            stop=lambda: task.folder.name in self._unwanted,
            helpers=others.start_cell if others else None,
        )

    def _send_from(self, folder: Path) -> Callable[[Event], None]:
        sender = Sender(folder)

        def report(event: Event) -> None:
            for part in sender.changes():
                self._messages.put(part)
            self._messages.put(sender.report(event))

        return report
