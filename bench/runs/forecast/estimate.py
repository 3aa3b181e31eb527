"""Estimate the cost of a cell before it starts: steps, bytes, memory and hours, by arithmetic on its settings.

Nothing is trained, and torch is imported only for a network that the table of sizes lacks. The hours are those of one
core whose rates were measured once. They hold to within a factor of two or so on cores of today;
`bench.runs.forecast.timing` measures a cell's own rates.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.data import TokenShape
from bench.engine.sizes import KEEP_NORMALISED, lanes_on
from bench.plugin import CHANNELS, METHODS, is_external
from bench.runs.forecast.networks import NetworkSize, network_size
from bench.runs.forecast.outline import (
    KEPT,
    MIXES_ALL,
    SPECTRAL,
    ClientShares,
    DataSize,
    client_steps,
    data_size,
    outlined_shares,
    selected,
    trainings,
)
from bench.settings import Settings

# Rates of one core of a server, as the engine trains there; docs/performance-log.md compares them with runs.
_STEP_ALONE, _STEP_BESIDE = 1.5e-3, 4e-5  # seconds of a step of one client alone, and of one side by side
_PARAMETER = 5.4e-9  # seconds of a step for each parameter that is trained
_PRODUCT = 1.5e-11  # seconds of a multiplication and an addition
_ACTIVATION = 1e-9  # seconds of a byte of activations
_BACKWARD = 3  # times as long as its forward pass takes a gradient
_CLIENT = 4e-4  # seconds of a client's round beside its steps, and of its evaluation

_OF_SERVER = 3  # models that a cell holds anyway: the server's, its first one, and one in passing
_IN_STEP = 3  # a step's model, its gradient and its new values; and one for each training
_SHARE = 0.5  # of a GPU's memory for models; the rest is for data, activations and what lies between tensors


class Rates(NamedTuple):
    """Rates of a cell: seconds of a client's step, of its round and of its evaluation beside steps and samples, and of
    an evaluated sample; bytes that a client receives and sends in a round; whether the steps that were timed had been
    recorded, as those of a run are."""

    step: float
    client: float
    evaluated: float
    sent: float
    recorded: bool = True


@dataclass(frozen=True)
class CellWork:
    """The work of a cell, as its settings and data say it.

    Attributes:
        clients, selected: numbers of clients that train at all, and in a round.
        steps: steps of a client in a round.
        networks: sizes of the cell's architectures.
    """

    settings: Settings
    size: DataSize
    shares: ClientShares
    clients: int
    selected: int
    steps: int
    networks: tuple[NetworkSize, ...]

    @classmethod
    def of(cls, settings: Settings, data_root: Path) -> "CellWork | None":
        """Look a cell's work up; None if its data are neither known nor here, or cannot be divided so.

        Raises:
            UserError: a model does not take the samples.
        """
        size, shares = data_size(settings, data_root), outlined_shares(settings, data_root)
        if size is None or shares is None:
            return None
        names, clients = settings.architectures or (settings.model,), max(1, shares.clients - settings.new_clients)
        networks = tuple(network_size(settings, name, size.shape, size.classes) for name in names)
        steps = client_steps(settings, shares.train)
        return cls(settings, size, shares, clients, selected(settings, clients), steps, networks)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 8 if self.settings.dtype == "float64" else 4

    @property
    def model(self) -> float:
        """Bytes of what is trained of a model, the mean of its architectures."""
        return self.itemsize * sum(network.trained for network in self.networks) / len(self.networks)

    def rates(self) -> Rates:
        """The rates of a core of today: of a step by FedAvg's, of messages with one model each way."""
        batch, count = min(self.settings.batch_size, self.shares.train), len(self.networks)
        samples = [n.products * _PRODUCT + n.training * _ACTIVATION / _BACKWARD for n in self.networks]
        steps = [
            (_STEP_ALONE if network.alone else _STEP_BESIDE) + network.trained * _PARAMETER + batch * _BACKWARD * sample
            for network, sample in zip(self.networks, samples, strict=True)
        ]
        return Rates(sum(steps) / count, _CLIENT, sum(samples) / count, 2 * self.model)

    def seconds(self, rates: Rates, threads: int) -> float:
        """Seconds of training and evaluation; the last version always has one."""
        settings, shares = self.settings, self.shares
        rounds = settings.rounds * self.selected * (self.steps * rates.step + rates.client)
        body = (self.size.train + self.size.test) * sum(network.body for network in self.networks) * _PRODUCT
        samples = self.clients * (shares.validation + shares.test) + shares.common
        evaluation = self.clients * rates.client + samples * rates.evaluated
        return (rounds + body) / threads + math.ceil(settings.rounds / settings.eval_every) * evaluation


class Estimate(NamedTuple):
    """Cost of one cell.

    Attributes:
        work: what it is computed from.
        steps: steps of clients in all rounds.
        seconds: of training and evaluation, by one process.
        sent: bytes that clients send and receive in all rounds: a model each way, unless it was measured.
        checkpoint: bytes of one checkpoint, once every client has taken part.
        memory: bytes of the data set, of tensors at the peak of a round and of a checkpoint that is being written;
            Python and its libraries come on top.
        gpu: the same of a GPU's memory.
        recorded: whether the seconds are of recorded steps.
    """

    work: CellWork
    steps: int
    seconds: float
    sent: int
    checkpoint: int
    memory: int
    gpu: int
    recorded: bool


def estimate(
    settings: Settings, data_root: Path, device: str, threads: int = 1, cells: int = 1, rates: Rates | None = None
) -> Estimate | None:
    """Estimate the cost of a cell. Returns None if its data are neither known nor here, or cannot be divided so.

    Args:
        device: `cpu` or `cuda`.
        threads: clients or cohorts that are trained at the same time on a CPU.
        cells: number of cells that share a GPU.
        rates: measured ones of this cell; None: those of a core of today.

    Raises:
        UserError: a model does not take the samples.
    """
    work = CellWork.of(settings, data_root)
    if work is None:
        return None
    rates = rates or work.rates()
    state = round((1 + kept(settings) * work.clients) * work.model)
    here, gpu = memory(work, device, threads, cells)
    return Estimate(
        work=work,
        steps=settings.rounds * work.selected * work.steps,
        seconds=work.seconds(rates, threads if device == "cpu" else 1),  # a GPU takes one cohort at a time
        sent=round(settings.rounds * work.selected * rates.sent),
        checkpoint=state,
        memory=round(here) + state,  # what a checkpoint that is being written holds
        gpu=round(gpu),
        recorded=rates.recorded,
    )


def memory(work: CellWork, device: str, threads: int, cells: int = 1) -> tuple[float, float]:
    """Return the bytes needed in the host's memory and in the GPU's."""
    settings, size, network = work.settings, work.size, max(work.networks, key=lambda network: network.trained)
    tokens, samples = isinstance(size.shape, TokenShape), size.train + size.test
    numbers = samples * (size.shape[0] if tokens else math.prod(size.shape))
    floats = 0 if tokens else work.itemsize * numbers
    # a small data set is also kept as networks see it
    data = size.itemsize * numbers + (floats if floats <= KEEP_NORMALISED else 0)
    data += samples * network.features * work.itemsize

    clients = work.clients + settings.new_clients if settings.clients == "all" else settings.clients
    frozen, trained = network.frozen * work.itemsize, network.trained * work.itemsize  # of the largest
    lanes = 1 if device == "cpu" and network.alone else lanes_on(device, trained)
    in_step = _IN_STEP + trainings(settings) + SPECTRAL.get(settings.method, 0)
    working = lanes * (in_step * trained + settings.batch_size * network.training * work.itemsize / 4)

    if device != "cuda":
        weights = models(settings, clients) * work.model + frozen
        return max(2 * data, data + weights + threads * working), 0
    weights = models(settings, clients) * trained + frozen
    if keep_on_host(settings, clients, size.shape, size.classes, device, cells):
        each = max(kept(settings), _new(settings, clients))
        on_gpu = each * min(lanes, settings.participation * clients) * trained + frozen
        return max(2 * data, data + weights), data + on_gpu + working
    return 2 * data + frozen, data + weights + working


def kept(settings: Settings) -> int:
    """The number of models that a client keeps between rounds, what a channel did not send yet among them."""
    unsent = sum(bool(CHANNELS.declaration(entry.name).stage == "select") for entry in settings.channel)
    return _of_method(settings) + unsent


def _of_method(settings: Settings) -> int:
    """The number of models that a client of the method keeps; one more than is known for a method of the user's."""
    return KEPT.get(settings.method, trainings(settings) + is_external(METHODS.declaration(settings.method)))


def _new(settings: Settings, clients: int) -> int:
    """The number of models that a selected client holds in a round beside those that are kept."""
    return 2 * clients if settings.method in MIXES_ALL else _of_method(settings)


def models(settings: Settings, clients: int) -> float:
    """Return how many models a cell of so many clients holds at the peak of a round: those that are kept, and the
    new ones of each selected client; what was not sent yet is changed in place."""
    return _OF_SERVER + kept(settings) * clients + _new(settings, clients) * settings.participation * clients


def keep_on_host(
    settings: Settings, clients: int, shape: tuple[int, ...], classes: int, device: str, cells: int = 1
) -> bool:
    """Return whether a cell has too many models for the GPU, so that they are on it only while they are trained.

    This depends on the GPU's whole memory and not on its free memory, so that a resumed cell gets the same answer.

    Args:
        cells: number of cells that share the GPU.
    """
    if device != "cuda":
        return False
    import torch  # here, as it takes seconds

    network = network_size(settings, settings.model, shape, classes)
    numbers = models(settings, clients) * network.trained + network.frozen
    itemsize = 8 if settings.dtype == "float64" else 4
    return bool(numbers * itemsize > _SHARE / cells * torch.cuda.mem_get_info()[1])


def memory_here() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its control group."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text(encoding="ascii").strip() if Path(file).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
