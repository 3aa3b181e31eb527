"""Estimate the cost of a grid before it starts, without its data files, for `bench run --dry-run`.

Times come from rounds that are run for this purpose (`bench.runs.forecast.rehearsal`). The state that a method keeps,
and its memory during a round, are counted in rounds of a few clients without steps. The speed of writing checkpoints is
measured next to the run folder.
"""

import functools
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call

from bench.data import TokenShape, noise
from bench.engine.device import lanes_on
from bench.engine.device_data import KEEP_NORMALISED, Pool
from bench.engine.memory import MemoryMeter
from bench.engine.predict import samples_at_once
from bench.engine.step import better_alone, is_convolutional
from bench.errors import UserError
from bench.federation.cell_data import load_dataset
from bench.federation.setup import check_batch_size
from bench.models.factory import build
from bench.models.init import initialise
from bench.params import Spec
from bench.rng import generator
from bench.runs.forecast.memory import STAND_IN, in_a_step, keep_on_host, models, models_on_gpu, scalars
from bench.runs.forecast.rehearsal import DataSize, rehearse
from bench.settings import Settings
from bench.store import checkpoint

_SIZES = {
    "mnist": DataSize((1, 28, 28), 10, 60_000, 10_000),
    "cifar10": DataSize((3, 32, 32), 10, 50_000, 10_000),
    "cifar100": DataSize((3, 32, 32), 100, 50_000, 10_000),
    "emnist": DataSize((1, 28, 28), 47, 112_800, 18_800),
    "organamnist": DataSize((1, 28, 28), 11, 41_052, 17_778),
    "inaturalist2017": DataSize((3, 64, 64), 13, 506_378, 0),
}
"""Sizes, with default options, of data sets whose files may not be here yet."""

_REPEATS = 5
_SLOW = 0.2  # seconds; a network that takes longer for two samples is not measured with a whole batch


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell.

    Attributes:
        seconds: of training and evaluation, by one process that has recorded the method's steps.
        warm_up: seconds more of the first cell of its method in a process.
        checkpoint: bytes of one checkpoint, once every client has taken part.
        memory: bytes of the data set, of tensors at the peak of a round and of a checkpoint that is being written;
            Python and its libraries come on top.
        gpu: the same of a GPU's memory.
        disk: bytes at the peak: one generation more than stays, as the newest is written before the oldest goes.
    """

    seconds: float
    warm_up: float
    checkpoint: int
    memory: int
    gpu: int
    disk: int


def estimate(settings: Settings, data_root: Path, device: str, threads: int = 1, cells: int = 1) -> Estimate | None:
    """Estimate the cost of a cell. Returns None if the size of its data set is not known yet.

    Args:
        threads: clients or cohorts that are trained at the same time on a CPU.
        cells: number of cells that share a GPU.

    Raises:
        UserError: the cell would be refused.
    """
    size = _size(settings, data_root)
    if size is None:
        return None
    shape, classes = size.shape, size.classes
    options = json.dumps(settings.model_options, sort_keys=True)
    check_batch_size(settings, settings.model, build(settings.model, shape, classes, settings.model_options), shape)
    step = gradient_step(settings.model, shape, classes, options, settings.batch_size, device)
    time = rehearse(settings, size, step.seconds, _clients_at_a_time(step, device), device, threads)
    hp = json.dumps(settings.hp, sort_keys=True)
    kept, kept_each = scalars(settings.method, hp, settings.model, shape, classes, options)
    state = round(4 * _width(settings) * (kept + kept_each * settings.clients))
    here, gpu = memory(settings, size, step, device, threads, cells)
    return Estimate(
        seconds=time.seconds,
        warm_up=time.warm_up,
        checkpoint=state,
        memory=round(here) + state,  # what a checkpoint that is being written holds
        gpu=round(gpu),
        disk=(checkpoint.GENERATIONS + 1) * state,
    )


def _width(settings: Settings) -> float:
    """Return the size of a number of the cell's dtype relative to float32."""
    return torch.finfo(getattr(torch, settings.dtype)).bits / 32


def _in_a_step(settings: Settings, step: "StepCost") -> float:
    """Return the bytes that a client needs at a step's peak, in float32: a plain gradient and the method's extras."""
    small = gradient_step(*STAND_IN, 2, "cpu")
    beyond = in_a_step(settings.method, json.dumps(settings.hp, sort_keys=True)) - small.gradient / small.model
    return step.gradient + max(0.0, beyond) * step.model


def _clients_at_a_time(step: "StepCost", device: str) -> int:
    """Return how many clients take a step at a time."""
    return 1 if step.better_alone and device == "cpu" else lanes_on(torch.device(device), step.model)


def memory(
    settings: Settings, size: DataSize, step: "StepCost", device: str, threads: int, cells: int = 1
) -> tuple[float, float]:
    """Return the bytes needed in the host's memory and in the GPU's."""
    tokens = isinstance(size.shape, TokenShape)
    numbers = (size.train + size.test) * (size.shape[0] if tokens else math.prod(size.shape))
    floats = 0 if tokens else 4 * _width(settings) * numbers
    # a small data set is also kept as networks see it
    data = size.itemsize * numbers + (floats if floats <= KEEP_NORMALISED else 0)
    lanes = _clients_at_a_time(step, device)
    working = _width(settings) * max(_in_a_step(settings, step) * lanes, step.evaluation)
    model = _width(settings) * step.model
    if device != "cuda":
        return max(2 * data, data + models(settings) * model + threads * working), 0
    if keep_on_host(settings, size.shape, size.classes, device, cells):
        return max(2 * data, data + models(settings) * model), data + models_on_gpu(settings, lanes) * model + working
    return 2 * data, data + models(settings) * model + working


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


def _size(settings: Settings, data_root: Path) -> DataSize | None:
    try:
        dataset = load_dataset(settings, data_root)
    except UserError:
        return _SIZES.get(settings.dataset)
    tests = len(dataset.y) - dataset.n_train
    return DataSize(dataset.shape, dataset.num_classes, dataset.n_train, tests, dataset.x.itemsize)


class StepCost(NamedTuple):
    """Cost of one gradient of a model: its seconds, and the bytes of model, gradient and evaluation in float32."""

    seconds: float
    model: int
    gradient: float
    evaluation: float
    better_alone: bool


@functools.cache
def gradient_step(name: str, shape: tuple[int, ...], classes: int, options: str, batch: int, device: str) -> StepCost:
    """Measure one gradient of a model. `options` are the model's, as JSON."""
    torch.set_num_threads(1)
    net = build(name, shape, classes, json.loads(options))
    rng = generator("estimate", name)
    tensors = {key: value.to(device) for key, value in initialise(net, rng).items()}
    weights = {key: tensors[key].requires_grad_() for key, _ in net.named_parameters()}
    pool = Pool.of(noise(shape, classes, max(batch, 4), rng), torch.device(device), torch.float32)
    x, y = pool.take(torch.arange(max(batch, 4), device=device))

    def gradient(samples: int) -> None:
        loss = nn.functional.cross_entropy(functional_call(net, tensors, (x[:samples],)), y[:samples])
        torch.autograd.grad(loss, list(weights.values()))
        if device == "cuda":
            torch.cuda.synchronize()

    def evaluation(samples: int) -> None:
        with torch.no_grad():
            functional_call(net, tensors, (x[:samples],))

    def seconds(samples: int) -> float:
        start = time.perf_counter()
        gradient(samples)
        return time.perf_counter() - start

    spec = Spec.of(name, net)
    size = sum(weight.nbytes for weight in weights.values())
    evaluated = samples_at_once(device, convolutional=is_convolutional(spec))
    footprint = size, _bytes_of(gradient, batch), _bytes_of(evaluation, evaluated), better_alone(spec)
    probe = min(batch, 2)
    if (slow := seconds(probe)) > _SLOW:
        return StepCost(slow * batch / probe, *footprint)
    seconds(batch)
    return StepCost(sum(seconds(batch) for _ in range(_REPEATS)) / _REPEATS, *footprint)


def _bytes_of(work: Callable[[int], None], samples: int) -> float:
    """Return the peak bytes of work on `samples` samples, extrapolated from two and four samples."""
    peaks: list[float] = []
    for few in (2, 4):
        with MemoryMeter() as footprint:
            work(few)
        peaks.append(footprint.peak)
    return peaks[0] + (peaks[1] - peaks[0]) / 2 * (samples - 2)
