"""The driver of a Ray cluster: gives cells to workers on its nodes and brings their results to the run folder."""

import math
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from bench.cluster.connect import actor_options, last_line, nodes, require
from bench.cluster.node import Broken, CellWorker, NodeMessage
from bench.cluster.requirements import Needs, check_node, needs_of
from bench.cluster.transfer import FilePart, Link, Receiver, Report
from bench.errors import UserError, shortage
from bench.federation.cell_data import read_data
from bench.results.cell_names import cell_name
from bench.runs.cell_options import check_device_name
from bench.runs.cell_runner import Backlog, CellTask, HeldElsewhere
from bench.runs.events import Event
from bench.runs.forecast.estimate import estimate
from bench.runs.interrupts import interrupts_deferred, supervise
from bench.settings import Settings
from bench.store import store

STOP_SECONDS = 60.0
"""Seconds after Ctrl-C in which workers may write checkpoints and send them to the run folder."""

ATTEMPTS = 3
"""A cell that has lost this many workers counts as failed."""

_BESIDE = 700 * 2**20
"""Bytes that Python, torch and Ray occupy in a worker; the estimate of a cell does not include them."""

_ASK_SECONDS = 2.0
_TOKEN = "ray.token"


class RayRunner:
    """Workers on the nodes of the cluster that this process has joined (`bench.runs.cell_runner.CellRunner`).

    When a worker is lost, alone or with its node, another one continues its cell from the last checkpoint.

    Args:
        jobs: number of cells that run at the same time; default: as many as the cluster has room for.
        device: `auto` means GPUs if any node has one, unless `gpus` is 0.
        cpus: cores of a cell; default: 1, or more if there are fewer cells than cores.
        gpus: GPUs of a cell; default: 1 if the device is `cuda`.
        devices: number of devices that share a cell, each with `cpus` cores and `gpus` GPUs.

    Raises:
        UserError: no node has the resources that a cell asks for.
    """

    def __init__(self, jobs: int | None, device: str, cpus: float | None, gpus: float | None, devices: int = 1) -> None:
        check_device_name(device)
        if device == "auto":
            device = "cuda" if gpus or (gpus is None and any(node.resources.get("GPU") for node in nodes())) else "cpu"
        if device == "cpu" and gpus:
            raise UserError(f"--gpus-per-cell {gpus:g} and --device cpu: leave one of the two out")
        self.device = device
        self.jobs = jobs
        self.devices = devices
        self._cpus = cpus
        self._gpus = (1.0 if gpus is None else gpus) if device == "cuda" else 0.0
        if device == "cuda" and not self._gpus:
            raise UserError("--gpus-per-cell 0 and --device cuda: leave one of the two out")
        self.sharing = max(1, math.floor(1 / self._gpus)) if self._gpus else 1
        require({"CPU": cpus or 1.0, "GPU": self._gpus}, devices)
        self._memory = 0.0
        self._needs: Needs | None = None

    def threads(self, cells: int | None) -> int:
        """Return the threads of a cell on each device: its cores. Without `cpus`, the first call fixes their number."""
        if self._cpus is None:
            cores = [int(node.resources.get("CPU", 0)) for node in nodes()]
            share = sum(cores) // (cells * self.devices) if cells and self.device == "cpu" else 1
            self._cpus = float(max(1, min(share, max(cores))))
        return max(1, int(self._cpus))

    def check(self, cells: Collection[Settings], data_root: Path) -> None:
        """Check versions, plug-ins and data on every node that may get cells, and estimate the memory of the cells.

        Raises:
            UserError: a node lacks something or has another version of it; the message names the node.
        """
        self._needs = needs_of(cells, data_root)
        costs = [estimate(cell, data_root, "cpu", max(1, int(self._cpus or 1))) for cell in cells]
        most = max(node.resources.get("memory", 0.0) for node in nodes())
        self._memory = min(max((cost.memory for cost in costs if cost), default=0) + _BESIDE, most)
        resources = {"CPU": self._cpus or 1.0, "GPU": self._gpus}
        ask = ray.remote(check_node)
        options = {"num_cpus": 0, "max_retries": 0, "runtime_env": actor_options()["runtime_env"]}
        references = []
        for node in nodes():
            if node.room(resources):
                strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
                references.append((node, ask.options(scheduling_strategy=strategy, **options).remote(self._needs)))
        for node, answer in references:
            try:
                wrong, _ = ray.get(answer)
            except (RayError, ImportError) as error:
                wrong = f"pFLeague as it is here cannot be imported there ({last_line(error)})"
            if wrong:
                raise UserError(f"node {node.name}: {wrong}")

    def run(self, tasks: Iterable[CellTask], on_event: Callable[[Event], None], unwanted: Collection[str] = ()) -> bool:
        """Run cells on the cluster, in the order of the grid."""
        assert self._needs is not None, "check() comes first"
        workers = _Workers(self, Backlog(tasks, on_event), self._needs, unwanted)
        try:
            return supervise(workers)
        finally:
            for text in workers.losses:  # once more, as Ray prints the state of a lost node over what was said then
                print(f"note: {text}", file=sys.stderr, flush=True)

    @property
    def resources(self) -> dict[str, float]:
        """Resources of each device of a worker, by Ray's names."""
        return {"CPU": self._cpus or 1.0, "GPU": self._gpus, "memory": self._memory}


@dataclass
class _Worker:
    """The driver's record of a worker: `asked` is the answer it waits for, `group` the places of a worker with several
    devices, `receiver` takes the cell's files if the run folder is not `shared`. It is `ready` after its check."""

    actor: Any  # Ray creates its methods at run time, so there is no type for them
    asked: Any
    group: PlacementGroup | None = None
    ready: bool = False
    shared: bool = False
    task: CellTask | None = None
    receiver: Receiver | None = None

    def end(self) -> None:
        """Note that the worker has no cell any more."""
        if self.receiver:
            self.receiver.close()
        self.task = self.receiver = self.asked = None


class _Workers:
    """All workers of a run and the cells they work on (`bench.runs.cell_runner.Workers`)."""

    def __init__(self, runner: RayRunner, backlog: Backlog, needs: Needs, unwanted: Collection[str]) -> None:
        self._runner = runner
        self._backlog = backlog
        self._needs = needs
        self._unwanted = unwanted
        self._workers: list[_Worker] = []
        self._waiting: deque[CellTask] = deque()
        self._lost: dict[str, int] = {}
        self.losses: list[str] = []
        self._failed_starts = 0
        self._token: tuple[str, str] | None = None
        self._shipped: dict[tuple[str, str], Any] = {}
        self._limit, self._asked_at = 0, 0.0

    def run(self) -> None:
        """Hand out tasks until all have ended."""
        while True:
            self._hand_out()
            self._recruit()
            if not self._waiting and not self._backlog.held:
                for worker in [worker for worker in self._workers if not worker.task]:
                    self._dismiss(worker)  # so that others can use its resources
                if not self._workers and not self._wait_for_room():
                    return
            self._listen(0.5)

    def stop(self) -> None:
        """Ask the workers to stop after their current server version, and wait for them."""
        self._backlog.clear()
        self._waiting.clear()
        for worker in self._working():
            self._stop(worker)
        deadline = time.monotonic() + STOP_SECONDS
        while self._working() and time.monotonic() < deadline:
            self._listen(0.2)

    def close(self) -> None:
        """End the workers. A cell that has not arrived by now continues from its last checkpoint next time."""
        for worker in list(self._workers):
            self._dismiss(worker)
        if self._token:
            Path(self._token[0]).unlink(missing_ok=True)

    def _working(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.task]

    def _hand_out(self) -> None:
        for worker in [worker for worker in self._workers if worker.ready and not worker.task]:
            task = self._waiting.popleft() if self._waiting else self._backlog.next()
            if task:
                self._give(worker, task)

    def _recruit(self) -> None:
        """Start workers while there is room, one per waiting task. A task goes to whichever worker is ready first."""
        starting = sum(not worker.ready for worker in self._workers)
        while len(self._workers) < self._room():
            while len(self._waiting) <= starting and (task := self._backlog.next()):
                self._waiting.append(task)
            if len(self._waiting) <= starting:
                return
            self._start(self._waiting[0].folder.parent)
            starting += 1

    def _wait_for_room(self) -> bool:
        """Return whether a cell is left that no node has room for at present, for example after a node was lost."""
        task = self._backlog.next()
        if task:
            self._waiting.append(task)
            self._backlog.say(task, "interrupted", "the cluster has no room for it: it waits for a node")
        return task is not None

    def _room(self) -> int:
        """Return how many workers there may be. It is asked again every few seconds because nodes come and go."""
        if not self._asked_at or time.monotonic() > self._asked_at + _ASK_SECONDS:
            room = sum(node.room(self._runner.resources) for node in nodes())
            room //= self._runner.devices
            self._limit, self._asked_at = min(room, self._runner.jobs or room), time.monotonic()
        return self._limit

    def _start(self, run: Path) -> None:
        if self._token is None:
            self._token = str(run.resolve() / _TOKEN), uuid.uuid4().hex
            store.write_text(Path(self._token[0]), self._token[1])
        resources = self._runner.resources
        options = {
            "num_cpus": resources["CPU"],
            "num_gpus": resources["GPU"],
            "memory": resources["memory"],
            **actor_options(),
        }
        devices, group = self._runner.devices, None
        if devices > 1:
            group = placement_group([{key: value for key, value in resources.items() if value}] * devices)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        actor: Any = ray.remote(CellWorker).options(**options).remote(devices, resources)
        self._workers.append(_Worker(actor, actor.ready.remote(self._needs, self._token), group))

    def _admit(self, worker: _Worker, node: str, wrong: str, missing: list[tuple[str, str]], shared: bool) -> None:
        """Handle a new worker's report on its node, and send it the data that are missing there."""
        if wrong:
            self._dismiss(worker)
            self.stop()
            names = {member.id: member.name for member in nodes()}
            raise UserError(f"node {names.get(node, node)}: {wrong}")
        for name, options in missing:
            if (name, options) not in self._shipped:
                self._shipped[name, options] = ray.put(read_data(name, options, Path(self._needs.data_root)))
            ray.get(worker.actor.provide.remote(name, options, self._shipped[name, options]))
        worker.ready, worker.shared, worker.asked, self._failed_starts = True, shared, None, 0

    def _give(self, worker: _Worker, task: CellTask) -> None:
        there = {"data_root": Path(self._needs.data_root), "plugins": ()}  # its plug-ins are loaded
        sent = CellTask(task.settings, task.folder.resolve(), task.options.model_copy(update=there))
        worker.task = task
        try:
            if not worker.shared:
                worker.receiver = Receiver(task.folder)
                for part in worker.receiver.files():
                    ray.get(worker.actor.receive.remote(task.folder.name, part))
            worker.actor.begin.remote(sent, worker.shared)
            worker.asked = worker.actor.take.remote()
        except store.BusyError as error:
            worker.task = None
            self._backlog.postpone(task, error.holder)
        except RayError as error:
            self._lose(worker, f"its worker was lost: {last_line(error)}")

    def _listen(self, seconds: float) -> None:
        workers = {worker.asked: worker for worker in self._workers if worker.asked}
        if not workers:
            time.sleep(seconds)
            return
        for reference in ray.wait(list(workers), num_returns=1, timeout=seconds)[0]:
            worker = workers[reference]
            with interrupts_deferred():  # half of an answer would be lost, such as the status of a cell
                try:
                    answer = ray.get(reference)
                    if worker.ready:
                        self._handle(worker, answer)
                    else:
                        self._admit(worker, *answer)
                except RayError as error:
                    self._lose(worker, f"its worker was lost: {last_line(error)}")

    def _handle(self, worker: _Worker, messages: list[NodeMessage]) -> None:
        for message in messages:
            task = worker.task
            assert task is not None
            try:
                self._take(worker, task, message)
            except OSError as error:  # the run folder cannot be written
                self._dismiss(worker)
                self._backlog.say(task, "failed", shortage(error) or f"its results could not be written: {error}")
                return
        worker.asked = worker.actor.take.remote() if worker.task else None

    def _take(self, worker: _Worker, task: CellTask, message: NodeMessage) -> None:
        match message:
            case FilePart() | Link():
                assert worker.receiver is not None
                worker.receiver.receive(message)
            case Report():
                assert worker.receiver is not None
                worker.receiver.commit(message)
                self._take(worker, task, message.event)
            case HeldElsewhere():
                worker.end()
                self._backlog.postpone(task, message.holder)
            case Broken(device_lost=True):
                self._lose(worker, message.reason)
            case Broken():
                worker.end()
                self._backlog.fail(task, message.reason)
            case Event():
                if message.state != "running":
                    worker.end()
                self._backlog.record(message)
                for other in self._working():
                    if other.task and other.task.folder.name in self._unwanted:
                        self._stop(other)
                if message.state == "failed" and self._runner.device != "cpu":
                    self._dismiss(worker)  # an error on the device makes the process unusable

    def _stop(self, worker: _Worker) -> None:
        assert worker.task is not None
        worker.actor.stop.remote(worker.task.folder.name)

    def _dismiss(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        worker.end()
        ray.kill(worker.actor)
        if worker.group:
            remove_placement_group(worker.group)

    def _lose(self, worker: _Worker, why: str) -> None:
        """Handle the loss of a cell's worker or of one of its devices.

        Another worker continues the cell, unless it has lost `ATTEMPTS` workers: then it may be what kills them.
        """
        task = worker.task
        self.losses.append(f"{cell_name(task.settings)}: {why}" if task else why)
        self._dismiss(worker)
        self._asked_at = 0.0  # its node may be gone, too
        if task is None:
            self._failed_starts += 1
            if self._failed_starts == ATTEMPTS:
                self.stop()
                raise UserError(f"no worker of the cluster could be started: {why}")
            return
        lost = self._lost[task.folder.name] = self._lost.get(task.folder.name, 0) + 1
        if lost == ATTEMPTS:
            self._backlog.fail(task, f"{why}; so {lost} of its workers were lost")
            return
        self._backlog.say(task, "interrupted", f"{why}; another one continues it")
        self._backlog.put_back(task)
