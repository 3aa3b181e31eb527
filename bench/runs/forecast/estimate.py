"""Estimate the cost of a grid before it starts, without its data files, for `bench run --dry-run`.

What a cell does is counted (`rehearsal.py`) and multiplied by how fast this machine is (`machine.py`);
nothing is trained. The speed of writing checkpoints is measured next to the run folder.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.data import TokenShape
from bench.engine.counting import Operations, Shadow, Tally
from bench.engine.device import lanes_on
from bench.engine.device_data import KEEP_NORMALISED
from bench.engine.predict import samples_at_once
from bench.engine.step import better_alone, is_convolutional
from bench.federation.features import can_take_their_place, head_spec, width
from bench.federation.setup import cell_spec, check_batch_size
from bench.federation.simulated_time import TIMELINE_VERSIONS
from bench.models.factory import build
from bench.runs.forecast.machine import Machine, this_machine
from bench.runs.forecast.memory import keep_on_host, models, models_on_gpu, working_bytes
from bench.runs.forecast.outline import (
    DataSize,
    data_size,
    outlined_shares,
    shares,
    steps_of_a_training,
    that_train,
)
from bench.runs.forecast.rehearsal import Counted, Rehearsal, rehearse
from bench.settings import Settings
from bench.store import checkpoint

# How long the start of an operation takes, in multiples of one that Python calls (`Machine.operation`):
_RECORDED = 1.0  # in a recorded step
_EAGER = 12.0  # in a step of clients side by side that is not recorded yet, each time through `torch.func`
_EAGER_ALONE = 5.0  # in a step of one client that is not recorded yet
_OUTSIDE = 5.0  # outside of steps, with the Python around it
_RECORDING = 1500.0  # to record it
_RECORDED_AFTER = 100  # calls of a step (`bench.engine.backends.backends`)
_RECORDED_ALONE_AFTER = 500

_BLOCK = 4096  # bytes; a file takes whole blocks of the disk
_STATUS = 3  # files of one block each that every cell has: status.json, timing.json, lock
_LOG_LINE = 80  # bytes, for each evaluation


_RESOURCES = "folder", "checkpoint", "memory", "gpu", "disk"


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell.

    Attributes:
        steps: steps of clients in all rounds.
        seconds: of training and evaluation, by one process that has recorded the method's steps.
        warm_up: seconds more of the first cell of its method in a process.
        folder: bytes that its folder takes on the disk when it is done.
        checkpoint: bytes of one checkpoint, once every client has taken part.
        memory: bytes of the data set, of tensors at the peak of a round and of a checkpoint that is being written;
            Python and its libraries come on top.
        gpu: the same of a GPU's memory.
        disk: bytes of checkpoints at the peak: one generation more than stays, as the newest is written before the
            oldest goes.
        sent: bytes that clients send and receive in all rounds.
        measured: whether rounds were timed (`bench.runs.forecast.timing`); else the time is of counted operations.
        borrowed: whether it is that of another method with the same model, scaled by what clients train.
    """

    steps: int
    seconds: float
    warm_up: float
    folder: int
    checkpoint: int
    memory: int
    gpu: int
    disk: int
    sent: int = 0
    measured: bool = False
    borrowed: bool = False


@dataclass(frozen=True)
class NetworkCosts:
    """The figures that decide how a cell's clients go side by side.

    Attributes:
        lanes: clients that take a step at a time.
        alone: whether clients train one after the other, as cohorts would gain nothing.
        evaluated: samples of an evaluation at a time.
        model: bytes of a model in the cell's type, without frozen tensors.
        frozen: bytes of the frozen tensors, which all models share.
        features: bytes of a sample's features where these take the samples' place, else 0.
    """

    lanes: int
    alone: bool
    evaluated: int
    model: int
    frozen: int
    features: int


def estimate(settings: Settings, data_root: Path, device: str, threads: int = 1, cells: int = 1) -> Estimate | None:
    """Estimate the cost of a cell. Returns None if the size of its data set is not known yet.

    Args:
        threads: clients or cohorts that are trained at the same time on a CPU.
        cells: number of cells that share a GPU.

    Raises:
        UserError: the cell would be refused.
        CannotRehearseError: its method cannot be counted.
    """
    known = data_size(settings, data_root)
    if known is None:
        return None
    size, dataset = known
    net = build(settings.model, size.shape, size.classes, settings.model_options, settings.adapters)
    check_batch_size(settings, settings.model, cell_spec(settings, settings.model, net), size.shape)
    rehearsal, network = rehearse(settings, size, shares(settings, dataset)), network_of(settings, size, device)
    seconds, warm_up = _seconds(settings, rehearsal, network, this_machine(device), threads)
    if network.features:  # mostly shared by the cells of a run
        warm_up += _feature_seconds(net, size, network, this_machine(device)) / threads
    state = round(rehearsal.at(lambda c: c.state, rehearsal.clients))
    here, gpu = memory(settings, size, rehearsal, device, threads, cells)
    return Estimate(
        steps=round(settings.rounds * rehearsal.at(lambda c: c.steps, rehearsal.selected)),
        seconds=seconds,
        warm_up=warm_up,
        folder=folder_bytes(settings, rehearsal),
        checkpoint=state,
        memory=round(here) + state,  # what a checkpoint that is being written holds
        gpu=round(gpu),
        disk=(checkpoint.GENERATIONS + 1) * state,
        sent=round(settings.rounds * rehearsal.at(lambda c: c.sent, rehearsal.selected)),
    )


def network_of(settings: Settings, size: DataSize, device: str) -> NetworkCosts:
    """Derive how the clients of a cell train and evaluate on a device."""
    net = build(settings.model, size.shape, size.classes, settings.model_options, settings.adapters)
    spec = cell_spec(settings, settings.model, net)
    convolutional, features = is_convolutional(spec), 0
    numbers = spec.d, sum(e.size for e in spec.frozen)
    if can_take_their_place(settings, net):
        spec, features = head_spec(spec), width(net, size.shape)
    model, frozen, features = (n * getattr(torch, settings.dtype).itemsize for n in (*numbers, features))
    alone = device == "cpu" and better_alone(spec)
    lanes = 1 if alone else lanes_on(torch.device(device), model)
    evaluated = samples_at_once(device, convolutional=convolutional)
    return NetworkCosts(lanes, alone, evaluated, model, frozen, features)


def borrowed(settings: Settings, peers: Sequence[tuple[Settings, Estimate]], data_root: Path) -> Estimate | None:
    """The mean cost of other cells, scaled by the training that the settings say; None if they say none.

    Args:
        settings: of the cell.
        peers: settings and costs of counted cells of the same data set and model.
        data_root: the folder of the data files.
    """
    work, work_of_peers = _training(settings, data_root), sum(_training(peer, data_root) for peer, _ in peers)
    if not work or not work_of_peers:
        return None

    def scaled(amount: str) -> float:
        total: float = sum(getattr(cost, amount) for _, cost in peers)
        return work / work_of_peers * total

    most = {name: max(getattr(cost, name) for _, cost in peers) for name in _RESOURCES}
    warm_up = sum(cost.warm_up for _, cost in peers) / len(peers)
    return Estimate(
        steps=round(scaled("steps")),
        seconds=scaled("seconds"),
        warm_up=warm_up,
        sent=round(scaled("sent")),
        borrowed=True,
        **most,
    )


def _training(settings: Settings, data_root: Path) -> float:
    """Steps in all rounds if each client trains one model in each."""
    mean = outlined_shares(settings, data_root)
    if mean is None:
        return 0.0
    clients = settings.participation * that_train(settings, mean.clients)
    return float(settings.rounds * clients * steps_of_a_training(settings, mean.train))


# -- time -------------------------------------------------------------------------------------------------------------


def evaluations(settings: Settings) -> int:
    """Count a cell's evaluations: the last version always has one."""
    return math.ceil(settings.rounds / settings.eval_every)


def _seconds(
    settings: Settings, rehearsal: Rehearsal, network: NetworkCosts, machine: Machine, threads: int
) -> tuple[float, float]:
    """Return the seconds of a cell whose steps were recorded before where they can be, and those of recording them."""
    rounds, evaluated = settings.rounds, evaluations(settings)

    def whole(amount: Callable[[Tally], float]) -> float:
        """An amount of the whole cell: of its first round, the other rounds and all evaluations."""
        first = rehearsal.at(lambda c: amount(c.first), rehearsal.selected)
        later = rehearsal.at(lambda c: amount(c.round), rehearsal.selected)
        return (
            first + (rounds - 1) * later + evaluated * rehearsal.at(lambda c: amount(c.evaluation), rehearsal.clients)
        )

    seconds = whole(lambda tally: time_of(tally.outside, machine, _OUTSIDE / network.lanes))
    warm_up = 0.0
    enough = _RECORDED_ALONE_AFTER if network.alone else _RECORDED_AFTER
    for k, step in enumerate(rehearsal.steps):
        calls = whole(lambda tally, k=k: tally.calls[k]) / network.lanes  # type: ignore[misc]
        recorded, unrecorded = (_step_seconds(step, network, machine, recorded=known) for known in (True, False))
        begun = min(calls, enough) * (unrecorded - recorded)
        if calls > enough:
            begun += _RECORDING * machine.operation * step.total()
        if network.alone or calls <= enough:  # every cell begins anew
            seconds += (calls * recorded + begun) / threads
        else:
            seconds, warm_up = seconds + calls * recorded / threads, warm_up + begun
    return seconds, warm_up


def _feature_seconds(net: Any, size: DataSize, network: NetworkCosts, machine: Machine) -> float:
    """Seconds in which a body computes the features of all samples."""
    tokens = isinstance(size.shape, TokenShape)
    shape = size.shape[:1] if tokens else size.shape
    x = torch.zeros(network.evaluated, *shape, dtype=torch.int64 if tokens else None, device="meta")
    with torch.no_grad(), Shadow().counting() as shadow:
        net.eval().features(x)
    return (size.train + size.test) / network.evaluated * time_of(shadow.tally.outside, machine, _OUTSIDE)


def round_seconds(
    rehearsal: Rehearsal, network: NetworkCosts, machine: Machine, clients: int, *, recorded: bool
) -> float:
    """Seconds of a round of so many clients, whose steps are recorded or not."""

    def of_tally(tally: Tally) -> float:
        calls = (
            count * _step_seconds(rehearsal.steps[k], network, machine, recorded=recorded) / network.lanes
            for k, count in tally.calls.items()
        )
        return time_of(tally.outside, machine, _OUTSIDE / network.lanes) + sum(calls)

    return rehearsal.at(lambda c: of_tally(c.round), clients)


def _step_seconds(step: Operations, network: NetworkCosts, machine: Machine, *, recorded: bool) -> float:
    """Seconds of a step of as many clients as go side by side."""
    start = _RECORDED if recorded else _EAGER_ALONE if network.alone else _EAGER
    return time_of(step, machine, start, network.lanes)


def time_of(operations: Operations, machine: Machine, start: float, lanes: int = 1) -> float:
    """Seconds of operations, each on so many clients' tensors; `start` in multiples of `machine.operation`."""
    busy = sum(count * machine.seconds(operation, lanes) for operation, count in operations.items())
    return busy + start * machine.operation * operations.total()


# -- memory and disk --------------------------------------------------------------------------------------------------


def memory(
    settings: Settings, size: DataSize, rehearsal: Rehearsal, device: str, threads: int, cells: int = 1
) -> tuple[float, float]:
    """Return the bytes needed in the host's memory and in the GPU's."""
    tokens, network = isinstance(size.shape, TokenShape), network_of(settings, size, device)
    numbers = (size.train + size.test) * (size.shape[0] if tokens else math.prod(size.shape))
    floats = 0 if tokens else getattr(torch, settings.dtype).itemsize * numbers
    # a small data set is also kept as networks see it
    data = size.itemsize * numbers + (floats if floats <= KEEP_NORMALISED else 0)
    data += (size.train + size.test) * network.features

    clients = rehearsal.clients + settings.new_clients if settings.clients == "all" else settings.clients
    weights = models(settings, clients) * network.model + network.frozen
    # On features a step is one of the head, and the body computes once, samples of an evaluation at a time.
    lanes = 1 if network.features else network.lanes
    working = working_bytes(settings, size.shape, size.classes, device, lanes)
    if device != "cuda":
        return max(2 * data, data + weights + threads * working), 0
    if keep_on_host(settings, clients, size.shape, size.classes, device, cells):
        on_gpu = models_on_gpu(settings, clients, network.lanes) * network.model + network.frozen
        return max(2 * data, data + weights), data + on_gpu + working
    return 2 * data + network.frozen, data + weights + working


def folder_bytes(settings: Settings, rehearsal: Rehearsal) -> int:
    """Bytes that the folder of a finished cell takes on the disk, in whole blocks."""
    clients, rounds = rehearsal.clients, settings.rounds

    def at(amount: Callable[[Counted], float]) -> float:
        return rehearsal.at(amount, clients)

    files: list[float] = [_LOG_LINE * (2 + evaluations(settings))]
    for name, (header, _, _) in rehearsal.few.tables.items():
        told = min(rounds, TIMELINE_VERSIONS) if name == "timeline.csv" else rounds
        of_rounds = told * at(lambda c, name=name: c.tables[name][1])  # type: ignore[misc]
        files.append(header + of_rounds + evaluations(settings) * at(lambda c, name=name: c.tables[name][2]))  # type: ignore[misc]
    files += [at(lambda c, name=name: c.records[name]) for name in rehearsal.few.records]  # type: ignore[misc]
    return _BLOCK * (1 + _STATUS + sum(math.ceil(file / _BLOCK) for file in files))


def checkpoint_rate(folder: Path) -> float:
    """Measure how many bytes of a checkpoint are written per second, with one of 64 MB next to `folder`."""
    place = folder
    while not place.is_dir():
        place = place.parent
    tensors = {f"client-{i}/0": torch.full((4 * 2**20,), float(i)) for i in range(4)}
    with tempfile.TemporaryDirectory(dir=place, prefix=".checkpoint-") as scratch:
        start = time.perf_counter()
        checkpoint.Writer(Path(scratch) / "checkpoint").save(checkpoint.Checkpoint(1, tensors, {}))
        return 64 * 2**20 / (time.perf_counter() - start)


def memory_here() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its control group."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text(encoding="ascii").strip() if Path(file).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
