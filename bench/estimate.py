"""What a grid will cost, before it is started and without its data files: what `bench run --dry-run` prints.

A rough figure with a stated basis: the time of one gradient step, measured here and now for each model and batch size,
times the steps of one model per client and round. Evaluation is not in it, nor the second model that some methods
train, nor what the `cohort` executor saves. What a method keeps is counted after a round without steps, and how fast a
checkpoint is written is measured beside the folder where the run will lie.
"""

import functools
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from bench import checkpoint
from bench.arena import KEEP_NORMALISED
from bench.cell import load_dataset
from bench.data import Dataset, Partition
from bench.errors import UserError
from bench.federation import Federation
from bench.models.factory import build
from bench.models.init import initialise
from bench.rng import generator
from bench.settings import Settings

_SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "mnist": ((1, 28, 28), 10, 60_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "cifar100": ((3, 32, 32), 100, 50_000),
    "emnist": ((1, 28, 28), 47, 112_800),
    "organamnist": ((1, 28, 28), 11, 41_052),
    "inaturalist2017": ((3, 64, 64), 13, 506_378),
}
"""Sample shape, classes and training samples of sets whose files may not be here yet (with their default options)."""

_REPEATS = 5
_SLOW = 0.2  # seconds; a network that needs as long for two samples is not measured with a whole batch


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell.

    Attributes:
        seconds: of training, by one process.
        checkpoint: bytes of one checkpoint, once every client has taken part.
        memory: bytes of the data set, the state and the round's new state.
        disk: bytes at the peak: one generation more than stays, as the newest is written before the oldest goes.
    """

    seconds: float
    checkpoint: int
    memory: int
    disk: int


def estimate(settings: Settings, data_root: Path, device: str) -> Estimate | None:
    """The estimate for a cell, or None where the size of its data is unknown before it is there."""
    size = _size(settings, data_root)
    if size is None:
        return None
    shape, classes, samples = size
    options = json.dumps(settings.model_options, sort_keys=True)
    step = _step(settings.model, shape, classes, options, settings.batch_size, device)
    share = 1.0 if settings.protocol == "paper" else 1 - settings.validation_share
    own = share * samples / settings.clients
    steps = settings.epochs * math.ceil(own / settings.batch_size) if settings.steps is None else settings.steps
    fixed, each = _scalars(
        settings.method, json.dumps(settings.hp, sort_keys=True), settings.model, options, shape, classes
    )
    width = torch.finfo(getattr(torch, settings.dtype)).bits // 8
    state = round((fixed + each * settings.clients) * width)
    data = samples * math.prod(shape)  # bytes of images; a small set is kept as floats
    data *= 4 if 4 * data <= KEEP_NORMALISED else 1
    return Estimate(
        seconds=settings.rounds * settings.participation * settings.clients * steps * step,
        checkpoint=state,
        memory=data + 2 * state,
        disk=(checkpoint.GENERATIONS + 1) * state,
    )


def checkpoint_rate(folder: Path) -> float:
    """Bytes per second at which a checkpoint reaches the disk, measured with one of 64 MB beside `folder`."""
    place = folder
    while not place.is_dir():
        place = place.parent
    tensors = {f"client-{i}/0": torch.full((4 * 2**20,), float(i)) for i in range(4)}
    with tempfile.TemporaryDirectory(dir=place, prefix=".checkpoint-") as scratch:
        start = time.perf_counter()
        checkpoint.Writer(Path(scratch) / "checkpoint").save(checkpoint.Checkpoint(1, tensors, {}))
        return 64 * 2**20 / (time.perf_counter() - start)


@functools.cache
def _scalars(
    method: str, hp: str, model: str, options: str, shape: tuple[int, ...], classes: int
) -> tuple[float, float]:
    """Scalars of state that a method keeps: in any case, and per client that has taken part; counted after a round."""
    rng = generator("estimate", method)
    x = rng.normal(size=(12, *shape)).astype(np.float32)
    data = Dataset("estimate", x, np.arange(12) % classes, 8, classes, (0.0,), (1.0,), "")
    sizes = []
    # What is kept does not depend on how long is trained, and without steps even a large network costs nothing.
    idle = {k: 0 if k.endswith(("_epochs", "_steps")) else v for k, v in json.loads(hp).items()}
    for clients in (1, 2):
        train = tuple(np.arange(i * 2, i * 2 + 2) for i in range(clients))
        empty = tuple(np.zeros(0, np.int64) for _ in range(clients))
        settings = Settings(
            method=method, hp=idle, clients=clients, model=model, model_options=json.loads(options), steps=0,
            batch_size=2,
        )  # fmt: skip
        partition = Partition(train, empty, empty, np.arange(8, 12))
        federation = Federation(settings, data, partition, executor="sequential", public=data)
        federation.advance()
        sizes.append(sum(tensor.numel() for tensor in federation.state()[0].values()))
    each = sizes[1] - sizes[0]
    return sizes[0] - each, each


def _size(settings: Settings, data_root: Path) -> tuple[tuple[int, ...], int, int] | None:
    try:
        dataset = load_dataset(settings, data_root)
    except UserError:
        return _SIZES.get(settings.dataset)
    return dataset.shape, dataset.num_classes, dataset.n_train


@functools.cache
def _step(name: str, shape: tuple[int, ...], classes: int, options: str, batch: int, device: str) -> float:
    """Seconds of one gradient of a model, by one thread."""
    torch.set_num_threads(1)
    net = build(name, shape, classes, json.loads(options))
    rng = generator("estimate", name)
    tensors = {key: value.to(device) for key, value in initialise(net, rng).items()}
    weights = {key: tensors[key].requires_grad_() for key, _ in net.named_parameters()}
    x = torch.from_numpy(rng.normal(size=(batch, *shape))).float().to(device)
    y = torch.from_numpy(rng.integers(classes, size=batch)).to(device)

    def seconds(samples: int) -> float:
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(functional_call(net, tensors, (x[:samples],)), y[:samples])
        torch.autograd.grad(loss, list(weights.values()))
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    probe = min(batch, 2)
    seconds(probe)  # the first call pays for what later ones find ready
    if (slow := seconds(probe)) > _SLOW:
        return slow * batch / probe
    seconds(batch)
    return sum(seconds(batch) for _ in range(_REPEATS)) / _REPEATS
