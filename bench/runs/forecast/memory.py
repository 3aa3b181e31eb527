"""Count how many models a method holds in memory, and decide whether they fit a GPU.

They are counted in rounds of a few clients without steps, so neither real data nor large models are needed.
"""

import contextlib
import functools
import json
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError

from bench.engine.memory import MemoryMeter
from bench.federation.federation import Federation
from bench.method import Hyperparameters
from bench.plugin import CHANNELS, METHODS
from bench.runs.forecast.networks import network_size
from bench.runs.forecast.outline import ClientShares, DataSize
from bench.runs.forecast.stand_in import stand_in
from bench.settings import LoraSettings, PublicSet, Settings

_NETWORK, _SIZE = "comet_cnn", DataSize((1, 28, 28), 10, 0, 0)  # quick, and small
_SHARE = 0.5  # of a GPU's memory; the rest is for data, activations and what lies between tensors


def models(settings: Settings, clients: int) -> float:
    """Return how many models a cell of so many clients holds at the peak of a round."""
    anyway, each = held(settings.method, json.dumps(settings.hp, sort_keys=True))
    selected = settings.participation * clients  # the other clients hold only what they keep between rounds
    memories = sum(bool(CHANNELS.declaration(entry.name).stage == "select") for entry in settings.channel)
    return anyway.peak + (each.between + memories) * clients + (each.peak - each.between) * selected


def models_on_gpu(settings: Settings, clients: int, lanes: int) -> float:
    """Return how many models are on a GPU at a time if models are kept in the host's memory between trainings."""
    _, each = held(settings.method, json.dumps(settings.hp, sort_keys=True))
    return (each.peak - each.between) * min(lanes, settings.participation * clients)


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
    network = network_size(settings, settings.model, shape, classes)
    numbers = models(settings, clients) * network.trained + network.frozen
    return bool(numbers * getattr(torch, settings.dtype).itemsize > _SHARE / cells * torch.cuda.mem_get_info()[1])


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
            federation = _small(method, json.loads(hp), clients)
            for _ in range(2):  # in the first round there is nothing old that new values replace
                federation.advance()
            unit = federation.server.initial_model().weights.nbytes
            counts.append(HeldModels(footprint.live / unit, footprint.peak / unit))
    each = HeldModels(*((more - few) / 3 for few, more in zip(*counts, strict=True)))
    return HeldModels(*(few - 6 * rate for few, rate in zip(counts[0], each, strict=True))), each


def models_in_step(settings: Settings) -> float:
    """Return how many models a client's step holds at its peak: its own, contexts, gradients, new values."""
    return _in_step(settings.method, json.dumps(settings.hp, sort_keys=True))


@functools.cache
def _in_step(method: str, hp: str) -> float:
    """Count them by what more lanes take, less the activations of the two samples."""
    peaks: list[float] = []
    for lanes in (2, 6):
        with MemoryMeter() as footprint:
            federation = _small(method, json.loads(hp), 6, steps=1)
            federation.engine.lanes = lanes
            federation.advance()
            peaks.append(footprint.peak / federation.server.initial_model().weights.nbytes)
    network = network_size(Settings(method="fedavg", model=_NETWORK), _NETWORK, _SIZE.shape, _SIZE.classes)
    return max(2.0, (peaks[1] - peaks[0]) / 4 - 2 * network.training / (4 * network.trained))


def _small(method: str, hp: dict[str, Any], clients: int, steps: int = 0) -> Federation:
    """Build a federation of few samples and a small network, with so few steps in a round if the method allows that."""
    # Counts are in units of what is trained, so that the rank is no matter but to methods with ranks of their own.
    adapters = LoraSettings(name="lora", rank=256) if METHODS.get(method).adapter == "lora" else None
    settings = Settings(
        method=method,
        hp=_fewest(method, hp, steps),
        model=_NETWORK,
        steps=steps,
        batch_size=2,
        adapters=adapters,
        public=PublicSet(name="mnist", size=4),
    )
    return stand_in(settings, _SIZE, ClientShares(clients, 2, 0, 0, 4), executor="cohort")


def _fewest(method: str, hp: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the hyperparameters with their epochs and steps set to `steps`, else to 1, if their class accepts that."""
    kind: type[Hyperparameters] = METHODS.get(method).Hyper
    for key in [key for key in hp if key.endswith(("_epochs", "_steps"))]:
        for count in (steps, 1):
            with contextlib.suppress(ValidationError):
                hp = kind(**{**hp, key: count}).model_dump()
                break
    return hp
