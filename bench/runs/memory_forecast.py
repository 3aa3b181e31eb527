"""How many models a method holds, and whether they fit a GPU.

Counted over rounds without steps of a few clients, for which neither data nor models of a real size are needed.
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
    """The models of a cell at the peak of a round, in units of the cell's model."""
    anyway, each = held(settings.method, json.dumps(settings.hp, sort_keys=True))
    selected = settings.participation * settings.clients  # the others hold nothing but what they keep
    return anyway.peak + each.between * settings.clients + (each.peak - each.between) * selected


def visitors(settings: Settings, lanes: int) -> float:
    """The models on a GPU where models rest on the host: what a round makes of the clients that are trained."""
    _, each = held(settings.method, json.dumps(settings.hp, sort_keys=True))
    return (each.peak - each.between) * min(lanes, settings.participation * settings.clients)


def rest_on_host(settings: Settings, shape: tuple[int, ...], classes: int, device: str, cells: int = 1) -> bool:
    """Whether a cell's models are too many for the GPU, so that they come there for their training only.

    It depends on what the GPU has, not on what is free: a cell that goes on later is to find the same answer.

    Args:
        cells: how many share the GPU.
    """
    if device != "cuda":
        return False
    net = build(settings.model, shape, classes, settings.model_options)
    size = getattr(torch, settings.dtype).itemsize * sum(p.numel() for p in net.parameters())
    return bool(models(settings) * size > _SHARE / cells * torch.cuda.mem_get_info()[1])


@functools.cache
def scalars(
    method: str, hp: str, model: str, shape: tuple[int, ...], classes: int, options: str
) -> tuple[float, float]:
    """Scalars of state that a method keeps: in any case, and per client that has taken part; counted after a round."""
    counts = []
    for clients in (1, 2):
        federation = _small(method, hp, model, shape, classes, options, clients)
        federation.advance()
        counts.append(sum(tensor.numel() for tensor in federation.state()[0].values()))
    each = counts[1] - counts[0]
    return counts[0] - each, each


class HeldModels(NamedTuple):
    """Models that are held between two rounds and at the peak of a round."""

    between: float
    peak: float


@functools.cache
def held(method: str, hp: str) -> tuple[HeldModels, HeldModels]:
    """Models that a method holds in any case, and per client; counted over rounds of a small network, as a large one's
    would take the time and the memory that are to be known."""
    found = []
    for clients in (6, 9):  # with fewer, what is held for each of them does not make the peak yet
        with MemoryMeter() as footprint:
            federation = _small(method, hp, *STAND_IN, clients)
            for _ in range(2):  # in the first round nothing old makes way for what is new
                federation.advance()
            unit = federation.server.initial_model().weights.nbytes
            found.append(HeldModels(footprint.live / unit, footprint.peak / unit))
    each = HeldModels(*((more - few) / 3 for few, more in zip(*found, strict=True)))
    return HeldModels(*(few - 6 * one for few, one in zip(found[0], each, strict=True))), each


@functools.cache
def in_a_step(method: str, hp: str) -> float:
    """What a client of a cohort takes at the peak of a step, in models: its own, its contexts, their gradients and new
    values, and what two samples take in the small network that is counted with."""
    peaks: list[float] = []
    for lanes in (2, 6):
        with MemoryMeter() as footprint:
            federation = _small(method, hp, *STAND_IN, 6, steps=1)
            federation.engine.lanes = lanes
            federation.advance()
            peaks.append(footprint.peak / federation.server.initial_model().weights.nbytes)
    return (peaks[1] - peaks[0]) / 4


def _small(
    method: str, hp: str, model: str, shape: tuple[int, ...], classes: int, options: str, clients: int, steps: int = 0
) -> Federation:
    """A federation of few samples. Mostly it does not train: what is kept does not depend on that, and a large network
    costs nothing."""
    rng = generator("estimate", method)
    own = 2 * clients
    data = replace(noise(shape, classes, own + 4, rng), n_train=own)
    settings = Settings(
        method=method,
        hp=_fewest(method, json.loads(hp), steps),
        clients=clients,
        model=model,
        model_options=json.loads(options),
        steps=steps,
        batch_size=2,
    )
    train = tuple(np.arange(i * 2, i * 2 + 2) for i in range(clients))
    empty = tuple(np.zeros(0, np.int64) for _ in range(clients))
    partition = Partition(train, empty, empty, np.arange(own, own + 4))
    return Federation(settings, data, partition, public=data, executor="cohort")


def _fewest(method: str, hp: dict[str, Any], steps: int) -> dict[str, Any]:
    """Hyperparameters with as few epochs and steps as wanted, or one, or as given: what their class takes."""
    kind: type[Hyperparameters] = METHODS.get(method).Hyper
    for key in [key for key in hp if key.endswith(("_epochs", "_steps"))]:
        for count in (steps, 1):
            with contextlib.suppress(ValidationError):
                hp = kind(**{**hp, key: count}).model_dump()
                break
    return hp
