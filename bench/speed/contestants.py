"""The contestants that are measured: each is a separate process that runs some rounds when it gets its turn.

Separate processes do not share threads or memory. Because they take turns, speed ratios stay fair on a machine that is
busy or changes its clock rate. A turn that the host of a virtual machine disturbs is repeated.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.federation.federation import Federation
from bench.speed.plain import PlainLoop
from bench.speed.workloads import WORKLOADS, Workload
from bench.store.provenance import cores, stolen_seconds

PLAIN = "plain"
DISTURBED = 0.05  # share of the cores' time; if the host takes more, the turn counts as disturbed
_ATTEMPTS = 4
_MULTIPLY_BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # names of Intel, AMD and ARM; without it bf16 is ten times slower


@dataclass(frozen=True)
class Contestant:
    """One participant of the comparison.

    Attributes:
        name: its name in the table.
        executor: an executor of the engine, or PLAIN for the plain loop.
        intra_op: number of threads of one operation.
        threads: number of clients that the sequential executor trains at a time.
        copies: number of cells that run side by side.
        precision: as in a cell's settings; the plain loop uses float32 or, captured, bfloat16.
        captured: whether the plain loop's steps are captured as CUDA graphs.
    """

    name: str
    executor: str
    intra_op: int = 1
    threads: int = 1
    copies: int = 1
    precision: str = "fp32"
    captured: bool = False


def contestants(device: str) -> list[Contestant]:
    """The plain loop, with one thread and with one per core; our executors; one cell alone; and a grid (on a CPU).

    The cell alone is also measured in lower precisions, if the device can multiply in them.
    """
    entered = [
        Contestant("plain", PLAIN),
        Contestant("plain, threads", PLAIN, intra_op=cores()),
        Contestant("sequential", "sequential"),
        Contestant("cohort", "cohort"),
        Contestant("cell", "auto", threads=cores()),
    ]
    multiplies = device == "cuda" or any(torch.cpu.get_capabilities().get(name) for name in _MULTIPLY_BF16)
    precisions = (["tf32"] if device == "cuda" else []) + (["bf16"] if multiplies else [])
    entered += [Contestant(f"cell, {p}", "auto", threads=cores(), precision=p) for p in precisions]
    if device == "cuda":
        return [*entered, Contestant("plain, captured, bf16", PLAIN, precision="bf16", captured=True)]
    return [*entered, Contestant("grid", "auto", copies=cores())]


@dataclass(frozen=True)
class Turn:
    """The round of median length from one contestant's turn; times are in seconds, by the contestant's own clock.

    Attributes:
        steps, images: number of client steps, and of the samples in them.
        training: time in the executor; for the plain loop, everything except evaluation.
        other: time of everything else except evaluation.
        evaluation: time to evaluate the new generic model.
        memory: peak memory of the process so far, in bytes; on a GPU, of the device.
        stolen: share of the cores' time that the host of a virtual machine gave to others during the turn.
    """

    steps: int
    images: int
    training: float
    other: float
    evaluation: float
    memory: int
    stolen: float = 0.0

    @property
    def seconds(self) -> float:
        """The length of the round."""
        return self.training + self.other + self.evaluation


class Process:
    """A contestant's process, which waits for its turns."""

    def __init__(self, contestant: Contestant, workload: str, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_work, args=(far_end, contestant, workload, device), daemon=True)
        self._process.start()
        far_end.close()

    def start(self) -> None:
        """Tell the process to take a turn."""
        self._pipe.send(None)

    def result(self) -> Turn:
        """Wait for the turn and return its figures.

        Raises:
            EOFError: the process has died.
        """
        turn: Turn = self._pipe.recv()
        return turn

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _work(pipe: Connection, contestant: Contestant, workload: str, device: str) -> None:
    torch.set_num_threads(contestant.intra_op)
    chosen, plain = WORKLOADS[workload], contestant.executor == PLAIN
    rounds = _plain(chosen, contestant, device) if plain else _ours(chosen, contestant, device)
    first = 1 if plain else chosen.warmup
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        for _ in range(first):
            next(rounds)
        first = 0
        pipe.send(middle([next(rounds) for _ in range(chosen.rounds)]))


def middle(rounds: list[Turn]) -> Turn:
    """The round of median length, so that a delay of the machine in one round has no effect."""
    return sorted(rounds, key=lambda turn: turn.seconds)[len(rounds) // 2]


def _ours(workload: Workload, contestant: Contestant, device: str) -> Iterator[Turn]:
    data = workload.dataset()
    executor: Any = contestant.executor
    settings = workload.settings.model_copy(update={"precision": contestant.precision})
    federation = Federation(
        settings,
        dataset=data,
        partition=workload.partition(data),
        public=None,
        device=device,
        executor=executor,
        threads=contestant.threads,
    )
    engine = federation.engine
    while True:
        steps, images, training = engine.steps, engine.images, engine.seconds
        start = time.perf_counter()
        federation.advance()
        between = time.perf_counter()
        federation.evaluate()
        end = time.perf_counter()
        training = engine.seconds - training
        other = between - start - training
        yield Turn(engine.steps - steps, engine.images - images, training, other, end - between, peak_memory(device))


def _plain(workload: Workload, contestant: Contestant, device: str) -> Iterator[Turn]:
    torch.backends.nnpack.set_flags(False)  # type: ignore[no-untyped-call]  # the public libraries do not use NNPACK
    data = workload.dataset()
    bf16 = contestant.precision == "bf16"
    place = torch.device(device)
    captured = contestant.captured
    loop = PlainLoop(workload.settings, data, workload.partition(data), place, captured=captured, bf16=bf16)
    clients = [i for i, client in enumerate(loop.clients) if client.size]
    share = workload.settings.selected(len(clients))
    if captured:
        loop.round(clients)  # each client's step is captured before rounds count
    while True:
        selected, clients = clients[:share], clients[share:] + clients[:share]
        start = time.perf_counter()
        steps = loop.round(selected)
        between = time.perf_counter()
        loop.evaluate(selected)
        end = time.perf_counter()
        images = sum(loop.clients[i].size for i in selected) * workload.settings.epochs
        yield Turn(steps, images, between - start, 0.0, end - between, peak_memory(device))


def peak_memory(device: str) -> int:
    """Peak memory in bytes, of the GPU or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # preferred, because a new process inherits the value of `getrusage` from its parent
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def take_turns(entered: list[Contestant], workload: str, device: str, repeats: int) -> dict[str, list[Turn]]:
    """The measured turns of each contestant; its copies are started together.

    The first turn of each contestant is not counted, because the warm-ups of other contestants run between these turns.
    """
    processes = {c.name: [Process(c, workload, device) for _ in range(c.copies)] for c in entered}
    turns: dict[str, list[Turn]] = {c.name: [] for c in entered}
    try:
        for k in range(1 + repeats):
            for name, group in processes.items():
                turn = undisturbed(partial(_turn, group), _ATTEMPTS if k else 1)
                if k:
                    turns[name].append(turn)
    finally:
        for group in processes.values():
            for process in group:
                process.end()
    return turns


def undisturbed(turn: Callable[[], Turn], attempts: int) -> Turn:
    """A turn in which the host took little of the cores' time, or else the least disturbed of `attempts` turns."""
    turns = [turn()]
    while turns[-1].stolen > DISTURBED and len(turns) < attempts:
        turns.append(turn())
    return min(turns, key=lambda candidate: candidate.stolen)


def _turn(group: list[Process]) -> Turn:
    start, stolen = time.perf_counter(), stolen_seconds()
    for process in group:
        process.start()
    turn = _merged([process.result() for process in group])
    return replace(turn, stolen=(stolen_seconds() - stolen) / cores() / (time.perf_counter() - start))


def _merged(side_by_side: list[Turn]) -> Turn:
    """One turn for cells that ran at the same time: the seconds of the slowest, and the sum of work and memory."""
    slowest = max(side_by_side, key=lambda turn: turn.seconds)
    sums = {name: sum(getattr(turn, name) for turn in side_by_side) for name in ("steps", "images", "memory")}
    return replace(slowest, **sums)
