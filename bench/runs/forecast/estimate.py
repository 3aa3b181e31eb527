"""Estimate the cost of a cell before it starts: steps, bytes, memory and hours, by arithmetic on rows of `costs.py`.

Nothing is trained, and torch is imported only for what the table of costs lacks. The hours are those of rates that were
measured once, model by model: their order of magnitude holds elsewhere. `counts.measured_rates` gives a machine's own.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from bench.config.code_digests import is_own
from bench.data import TokenShape
from bench.engine.sizes import KEEP_NORMALISED, lanes_on, samples_at_once
from bench.plugin import CHANNELS, METHODS, MODELS
from bench.runs.forecast.costs import (
    UNITS,
    MethodCosts,
    ModelCosts,
    NumbersSent,
    StepRates,
    as_method_costs,
    method_key,
    model_row,
    table,
)  # fmt: skip
from bench.runs.forecast.outline import (
    ClientShares,
    DataSize,
    data_size,
    shares,
    steps_of_a_training,
    that_train,
)
from bench.settings import Settings
from bench.store.store import GENERATIONS

_SHARE = 0.5  # of a GPU's memory; the rest is for data, activations and what lies between tensors
_BLOCK = 4096  # bytes; a file takes whole blocks of the disk
_FIXED = 32_768  # bytes of a cell's folder: settings, status, lock, timing, log and half-filled blocks
_LINES_OF_ROUND, _LINES_OF_EVALUATION = 80, 1500  # bytes of the tables' lines
_LINES_OF_CLIENT, _TIMES_OF_CLIENT = 130, 118  # in an evaluation, and in a round whose timeline is kept
_TIMED_ROUNDS = 4  # whose timeline is kept
_SAMPLE, _HITS = 4, 0.5  # bytes of a sample in the partition's record, and of its hits in an evaluation


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell.

    Attributes:
        steps: steps of clients in all rounds.
        seconds: of training and evaluation, by one process.
        folder: bytes that its folder takes on the disk when it is done.
        checkpoint: bytes of one checkpoint, once every client has taken part.
        memory: bytes of the data set, of tensors at the peak of a round and of a checkpoint that is being written;
            Python and its libraries come on top.
        gpu: the same of a GPU's memory.
        disk: bytes of checkpoints at the peak: one generation more than stays, as the newest is written before the
            oldest goes.
        sent: bytes that clients send and receive in all rounds.
        measured: whether rounds were timed; else the time is of rates in the table of costs.
    """

    steps: int
    seconds: float
    folder: int
    checkpoint: int
    memory: int
    gpu: int
    disk: int
    sent: int
    measured: bool = False


@dataclass(frozen=True)
class CellCosts:
    """What an estimate rests on: a cell's settings, data and costs.

    Attributes:
        selected, clients: numbers of clients that train in a round, and of all that train.
        models: costs of each of its architectures.
        public: number of public samples.
    """

    settings: Settings
    size: DataSize
    shares: ClientShares
    selected: int
    clients: int
    method: MethodCosts
    models: tuple[ModelCosts, ...]
    public: int

    @classmethod
    def of(cls, settings: Settings, data_root: Path) -> "CellCosts | None":
        """Look a cell's data and costs up. None if the size of its data set is not known yet.

        Raises:
            UserError: the cell would be refused.
            CannotCountError: its method cannot be counted.
        """
        known = data_size(settings, data_root)
        if known is None:
            return None
        size, dataset = known
        mean, method = shares(settings, dataset), method_costs(settings)
        names = settings.architectures or (settings.model,)
        models = tuple(model_costs(settings, name, size.shape, size.classes) for name in names)
        clients = that_train(settings, mean.clients)
        if isinstance(method.trigger, int):
            selected = min(method.trigger, clients)
        else:
            everyone = method.everyone or settings.unselected != "idle"
            selected = clients if everyone else settings.selected(clients)
        public = (settings.public.size or min(size.train, 5000)) if settings.public else 0
        return cls(settings, size, mean, selected, clients, method, models, public)

    @property
    def main(self) -> ModelCosts:
        """The costs of the model that `model` names, or else of the first architecture."""
        names = self.settings.architectures or (self.settings.model,)
        return self.models[names.index(self.settings.model) if self.settings.model in names else 0]

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 8 if self.settings.dtype == "float64" else 4

    @property
    def steps(self) -> float:
        """Steps of a client in a round in which it trains."""
        a, b, c, d = self.method.steps
        batches = math.ceil(self.shares.train / self.settings.batch_size)
        return a * steps_of_a_training(self.settings, self.shares.train) + b * batches + c + d * self.public

    def lanes(self, device: str) -> int:
        """Clients that take a step at a time."""
        return 1 if device == "cpu" and self.main.alone else lanes_on(device, self.main.trained * self.itemsize)

    def bytes_of(self, amount: NumbersSent, clients: int) -> float:
        """Bytes of so many clients' messages or states, each of the mean of its architectures."""
        return sum(amount.of(self._units(model), clients) for model in self.models) / len(self.models) * self.itemsize

    def _units(self, model: ModelCosts) -> dict[str, float]:
        buffers = model.buffers if self.settings.batchnorm == "aggregate" else 0
        classes = self.size.classes
        sizes = model.trained + buffers, model.head, model.width, classes, classes**2, self.public * classes, 1
        return dict(zip(UNITS, map(float, sizes), strict=True))


def method_costs(settings: Settings) -> MethodCosts:
    """The costs of a cell's method.

    Raises:
        CannotCountError: it has no row, and its rounds fail where they are counted.
        UserError: the method refuses the settings.
    """
    key = method_key(settings)
    if (row := table("methods").get(key)) is not None and not is_own(METHODS, settings.method):
        return as_method_costs(row)
    from bench.runs.forecast.counts import counted_method  # here, as it takes torch

    return counted_method(key, settings)


def model_costs(settings: Settings, name: str, shape: tuple[int, ...], classes: int) -> ModelCosts:
    """The costs of a model of a cell, for samples of this shape.

    Raises:
        UserError: the model does not take the samples.
    """
    options = settings.model_options if name == settings.model else {}
    if (row := model_row(settings, name, shape, classes)) is not None:
        return ModelCosts(**{**row, "rates": StepRates(*row["rates"])})
    from bench.runs.forecast.counts import counted_model  # here, as it takes torch

    augmented = settings.augment != "none" or bool({*settings.architectures} - {settings.model})
    where = json.dumps(options, sort_keys=True), settings.frozen, settings.adapters, augmented
    return counted_model(settings.method, name, shape, classes, *where, MODELS.get(name))


def may_be_refused(settings: Settings) -> bool:
    """Whether only the method itself can say that it goes with the settings (`bench.federation.setup.make_method`)."""
    if is_own(METHODS, settings.method) or method_key(settings) not in table("methods"):
        return True
    costs = method_costs(settings)
    special = settings.pm_until_broadcast or settings.unselected != "idle"
    return bool(
        settings.channel
        or settings.dp_sgd
        or settings.attack
        or settings.adapters
        or (settings.lr_decay < 1 and costs.trigger == 1)
        or (settings.clock.dropout and costs.everyone)
        or (special and (costs.trigger != "everyone" or not settings.wait_free))
    )


def estimate(
    settings: Settings, data_root: Path, device: str, threads: int = 1, cells: int = 1, rates: StepRates | None = None
) -> Estimate | None:
    """Estimate the cost of a cell. Returns None if the size of its data set is not known yet.

    Args:
        settings: the cell's.
        data_root: the folder of the data files.
        device: `cpu` or `cuda`.
        threads: clients or cohorts that are trained at the same time on a CPU.
        cells: number of cells that share a GPU.
        rates: measured ones of this cell; None: those of the table.

    Raises:
        UserError: the cell would be refused.
        CannotCountError: its method cannot be counted.
    """
    cell = CellCosts.of(settings, data_root)
    if cell is None:
        return None
    state = round(cell.bytes_of(cell.method.state, cell.clients))
    here, gpu = memory(cell, device, threads, cells)
    sent = _encoded(cell) * cell.bytes_of(cell.method.up, cell.selected) + cell.bytes_of(
        cell.method.down, cell.selected
    )
    return Estimate(
        steps=round(settings.rounds * cell.selected * cell.steps),
        seconds=_seconds(cell, threads, rates),
        folder=folder_bytes(cell),
        checkpoint=state,
        memory=round(here) + state,  # what a checkpoint that is being written holds
        gpu=round(gpu),
        disk=(GENERATIONS + 1) * state,
        sent=round(settings.rounds * sent),
        measured=rates is not None,
    )


def _encoded(cell: CellCosts) -> float:
    """Share of the bytes of a model's update that a cell's channel sends."""
    if not cell.settings.channel:
        return 1.0
    from bench.federation.channel import encoded_share  # here, as it takes torch

    return encoded_share(cell.settings, cell.main.trained)


def evaluations(settings: Settings) -> int:
    """Count a cell's evaluations: the last version always has one."""
    return math.ceil(settings.rounds / settings.eval_every)


def _seconds(cell: CellCosts, threads: int, rates: StepRates | None) -> float:
    settings, size = cell.settings, cell.size
    batch = min(settings.batch_size, cell.shares.train)
    all_rates = [rates] if rates else [model.rates for model in cell.models]
    step = sum(rate.step + rate.sample * batch for rate in all_rates) / len(all_rates)
    sample = sum(rate.evaluated for rate in all_rates) / len(all_rates)
    training = settings.rounds * cell.selected * cell.steps * step / threads
    evaluating = evaluations(settings) * cell.shares.evaluated(cell.clients) * sample
    return training + evaluating + (size.train + size.test) * cell.main.features_seconds / threads


def memory(cell: CellCosts, device: str, threads: int, cells: int = 1) -> tuple[float, float]:
    """Return the bytes needed in the host's memory and in the GPU's."""
    settings, size, model = cell.settings, cell.size, cell.main
    tokens, samples = isinstance(size.shape, TokenShape), size.train + size.test
    numbers = samples * (size.shape[0] if tokens else math.prod(size.shape))
    floats = 0 if tokens else cell.itemsize * numbers
    # a small data set is also kept as networks see it
    data = size.itemsize * numbers + (floats if floats <= KEEP_NORMALISED else 0)
    if model.on_features:
        data += samples * model.width * cell.itemsize

    clients = cell.clients + settings.new_clients if settings.clients == "all" else settings.clients
    frozen, trained = model.frozen * cell.itemsize, model.trained * cell.itemsize
    weights = models_held(settings, clients) * trained + frozen
    # On features a step is one of the head, and the body computes once, samples of an evaluation at a time.
    lanes = cell.lanes(device)
    working = _working_bytes(cell, device, 1 if model.on_features else lanes)
    if device != "cuda":
        return max(2 * data, data + weights + threads * working), 0
    if keep_on_host(settings, clients, size.shape, size.classes, device, cells):
        _, _, between, peak = cell.method.held
        on_gpu = (peak - between) * min(lanes, settings.participation * clients) * trained + frozen
        return max(2 * data, data + weights), data + on_gpu + working
    return 2 * data + frozen, data + weights + working


def models_held(settings: Settings, clients: int) -> float:
    """Return how many models a cell of so many clients holds at the peak of a round."""
    _, peak_anyway, between, peak = method_costs(settings).held
    selected = settings.participation * clients  # the other clients hold only what they keep between rounds
    memories = sum(bool(CHANNELS.declaration(entry.name).stage == "select") for entry in settings.channel)
    return peak_anyway + (between + memories) * clients + (peak - between) * selected


def keep_on_host(
    settings: Settings, clients: int, shape: tuple[int, ...], classes: int, device: str, cells: int = 1
) -> bool:
    """Return whether a cell has too many models for the GPU, so that they are on it only while they are trained.

    This depends on the GPU's whole memory and not on its free memory, so that a resumed cell gets the same answer.

    Args:
        settings: the cell's.
        clients: how many it has.
        shape, classes: shape of a sample, and number of classes.
        device: `cpu` or `cuda`.
        cells: number of cells that share the GPU.
    """
    if device != "cuda":
        return False
    import torch  # here, as it takes seconds

    model = model_costs(settings, settings.model, shape, classes)
    numbers = models_held(settings, clients) * model.trained + model.frozen
    itemsize = 8 if settings.dtype == "float64" else 4
    return bool(numbers * itemsize > _SHARE / cells * torch.cuda.mem_get_info()[1])


def _working_bytes(cell: CellCosts, device: str, lanes: int) -> float:
    """Bytes of clients' steps side by side or of an evaluation, whichever is more."""
    model, batch = cell.main, cell.settings.batch_size
    step = model.gradient[0] + model.gradient[1] * batch + cell.method.in_step * 4 * model.trained
    at_once = samples_at_once(device, convolutional=model.convolutional)
    return cell.itemsize / 4 * max(step * lanes, model.evaluated[0] + model.evaluated[1] * at_once)


def folder_bytes(cell: CellCosts) -> int:
    """Bytes that the folder of a finished cell takes on the disk: lines of its tables, and its partition."""
    rounds, tested = cell.settings.rounds, cell.shares.evaluated(cell.clients)
    evaluation = _LINES_OF_EVALUATION + cell.clients * _LINES_OF_CLIENT + tested * _HITS
    tables = rounds * _LINES_OF_ROUND + evaluations(cell.settings) * evaluation
    tables += min(rounds, _TIMED_ROUNDS) * cell.selected * _TIMES_OF_CLIENT
    samples = tested + cell.shares.clients * cell.shares.train
    return _BLOCK * math.ceil((_FIXED + tables + samples * _SAMPLE) / _BLOCK)


def memory_here() -> int:
    """Return the bytes of memory that this process may use: the machine's, or the limit of its control group."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(file).read_text(encoding="ascii").strip() if Path(file).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
