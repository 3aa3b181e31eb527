"""Count how many models a method holds in memory, and decide whether they fit a GPU.

They are counted in rounds of a few clients without steps, so neither real data nor large models are needed.
"""

import contextlib
import functools
import json
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from bench.data import Partition, noise
from bench.engine.memory import MemoryMeter
from bench.federation.federation import Federation
from bench.method import Hyperparameters
from bench.models.factory import build
from bench.plugin import METHODS
from bench.rng import generator
from bench.settings import Settings

STAND_IN = ("comet_cnn", (1, 28, 28), 10, "{}")  # model, shape of a sample, classes, options: quick, and small
_SHARE = 0.5  # of a GPU's memory; the rest is for data, activations and what lies between tensors


def models(settings: Settings) -> float:
    """Return how many models a cell holds at the peak of a round."""
    anyway, each = held(settings.method, json.dumps(settings.hp, sort_keys=True))
    selected = settings.participation * settings.clients  # the other clients hold only what they keep between rounds
    return anyway.peak + each.between * settings.clients + (each.peak - each.between) * selected


def keep_on_host(settings: Settings, shape: tuple[int, ...], classes: int, device: str, cells: int = 1) -> bool:
    """Return whether a cell has too many models for the GPU, so that they are on it only while they are trained.

    This depends on the GPU's whole memory and not on its free memory, so that a resumed cell gets the same answer.

    Args:
        cells: number of cells that share the GPU.
    """
    if device != "cuda":
        return False
    net = build(settings.model, shape, classes, settings.model_options)
    size = getattr(torch, settings.dtype).itemsize * sum(p.numel() for p in net.parameters())
    return bool(models(settings) * size > _SHARE / cells * torch.cuda.mem_get_info()[1])


class HeldModels(NamedTuple):
    """Numbers of models in memory between two rounds and at the peak of a round."""

    between: float
    peak: float


@functools.cache
def held(method: str, hp: str) -> tuple[HeldModels, HeldModels]:
    """Count the models that a method holds: a fixed number, and a number per client.

    They are counted with a small network, because a large one would need the time and memory that are to be estimated.
    """
    counts = []
    for clients in (6, 9):  # with fewer clients, what is held per client does not determine the peak yet
        with MemoryMeter() as footprint:
            federation = _small(method, hp, *STAND_IN, clients)
            for _ in range(2):  # in the first round there is nothing old that new values replace
                federation.advance()
            unit = federation.server.initial_model().weights.nbytes
            counts.append(HeldModels(footprint.live / unit, footprint.peak / unit))
    each = HeldModels(*((more - few) / 3 for few, more in zip(*counts, strict=True)))
    return HeldModels(*(few - 6 * rate for few, rate in zip(counts[0], each, strict=True))), each


def _small(
    method: str, hp: str, model: str, shape: tuple[int, ...], classes: int, options: str, clients: int
) -> Federation:
    """Build a federation of few samples that takes no steps."""
    rng = generator("estimate", method)
    n_train = 2 * clients
    data = replace(noise(shape, classes, n_train + 4, rng), n_train=n_train)
    settings = Settings(
        method=method,
        hp=_fewest(method, json.loads(hp)),
        clients=clients,
        model=model,
        model_options=json.loads(options),
        steps=0,
        batch_size=2,
    )
    train = tuple(np.arange(i * 2, i * 2 + 2) for i in range(clients))
    empty = tuple(np.zeros(0, np.int64) for _ in range(clients))
    partition = Partition(train, empty, empty, np.arange(n_train, n_train + 4))
    return Federation(settings, dataset=data, partition=partition, public=data, executor="cohort")


def _fewest(method: str, hp: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters with their epochs and steps set to 0, else to 1, if their class accepts that."""
    kind: type[Hyperparameters] = METHODS.get(method).Hyper
    for key in [key for key in hp if key.endswith(("_epochs", "_steps"))]:
        for count in (0, 1):
            with contextlib.suppress(ValidationError):
                hp = kind(**{**hp, key: count}).model_dump()
                break
    return hp
