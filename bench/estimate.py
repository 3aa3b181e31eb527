"""What a grid will cost, before it is started and without its data files: what `bench run --dry-run` prints.

A rough figure with a stated basis: the time of one gradient step, measured here and now for each model and batch size,
times the steps of one model per client and round. Evaluation is not in it, nor the second model that some methods
train, nor what the `cohort` executor saves.
"""

import functools
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call

from bench import checkpoint
from bench.cell import load_dataset
from bench.errors import UserError
from bench.models.factory import build
from bench.models.init import initialise
from bench.rng import generator
from bench.settings import Settings

_SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "mnist": ((1, 28, 28), 10, 60_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "cifar100": ((3, 32, 32), 100, 50_000),
    "emnist": ((1, 28, 28), 47, 112_800),
}
"""Sample shape, classes and training samples of sets whose files may not be here yet (EMNIST: its balanced split)."""

_REPEATS = 5


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell: `seconds` of training by one process, bytes of `memory` in it, bytes of `disk` at its peak.

    Memory is the data set and, disk is generations of, a state in which every client owns a model.
    """

    seconds: float
    memory: int
    disk: int


def estimate(settings: Settings, data_root: Path, device: str) -> Estimate | None:
    """The estimate for a cell, or None where the size of its data is unknown before it is there."""
    size = _size(settings, data_root)
    if size is None:
        return None
    shape, classes, samples = size
    options = json.dumps(settings.model_options, sort_keys=True)
    step, parameters = _step(settings.model, shape, classes, options, settings.batch_size, device)
    share = 1.0 if settings.protocol == "paper" else 1 - settings.validation_share
    own = share * samples / settings.clients
    steps = settings.epochs * math.ceil(own / settings.batch_size) if settings.steps is None else settings.steps
    state = (settings.clients + 1) * parameters * torch.finfo(getattr(torch, settings.dtype)).bits // 8
    data = 4 * samples * math.prod(shape)
    return Estimate(
        seconds=settings.rounds * settings.participation * settings.clients * steps * step,
        memory=data + 2 * state,
        disk=(checkpoint.GENERATIONS + 1) * state,  # one more than stays: the newest is written before the oldest goes
    )


def _size(settings: Settings, data_root: Path) -> tuple[tuple[int, ...], int, int] | None:
    try:
        dataset = load_dataset(settings, data_root)
    except UserError:
        return _SIZES.get(settings.dataset)
    return dataset.shape, dataset.num_classes, dataset.n_train


@functools.cache
def _step(name: str, shape: tuple[int, ...], classes: int, options: str, batch: int, device: str) -> tuple[float, int]:
    """Seconds of one gradient of a model, by one thread, and its number of parameters."""
    torch.set_num_threads(1)
    net = build(name, shape, classes, json.loads(options))
    rng = generator("estimate", name)
    tensors = {key: value.to(device) for key, value in initialise(net, rng).items()}
    weights = {key: tensors[key].requires_grad_() for key, _ in net.named_parameters()}
    x = torch.from_numpy(rng.normal(size=(batch, *shape))).float().to(device)
    y = torch.from_numpy(rng.integers(classes, size=batch)).to(device)

    def gradient() -> None:
        loss = nn.functional.cross_entropy(functional_call(net, tensors, (x,)), y)
        torch.autograd.grad(loss, list(weights.values()))
        if device == "cuda":
            torch.cuda.synchronize()

    gradient()  # the first call pays for what later ones find ready
    start = time.perf_counter()
    for _ in range(_REPEATS):
        gradient()
    return (time.perf_counter() - start) / _REPEATS, sum(weight.numel() for weight in weights.values())
