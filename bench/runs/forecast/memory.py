"""Count how many models a method holds in memory, and decide whether they fit a GPU.

They are counted in rounds of a few clients without steps, so neither real data nor large models are needed.
"""

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn
from torch.func import functional_call

from bench.data import Partition, noise
from bench.engine.device_data import Pool
from bench.engine.memory import MemoryMeter
from bench.engine.predict import samples_at_once
from bench.engine.step import is_convolutional
from bench.federation.federation import Federation
from bench.federation.setup import cell_spec
from bench.method import Hyperparameters
from bench.models.factory import build, initial_values
from bench.models.init import without_draws
from bench.params import Prefixes, Spec
from bench.plugin import CHANNELS, METHODS
from bench.rng import generator
from bench.runs.forecast.kept import keep, method_key, read_kept
from bench.settings import AdapterSettings, LoraSettings, Settings

STAND_IN = ("comet_cnn", (1, 28, 28), 10, "{}")  # model, shape of a sample, classes, options: quick, and small
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
    net = build(settings.model, shape, classes, settings.model_options, settings.adapters)
    spec = cell_spec(settings, settings.model, net)
    numbers = models(settings, clients) * spec.d + sum(e.size for e in spec.frozen)
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
    anyway, each = _kept("held", method, hp, lambda: [list(numbers) for numbers in _count_held(method, hp)])
    return HeldModels(*anyway), HeldModels(*each)


def _count_held(method: str, hp: str) -> tuple[HeldModels, HeldModels]:
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


@functools.cache
def in_a_step(method: str, hp: str) -> float:
    """Return the memory of one client at the peak of a cohort's step, in units of a model.

    It includes the client's model, contexts, gradients and new values, and the activations of two samples in the small
    network used for counting.
    """
    return float(_kept("in a step", method, hp, lambda: _count_in_a_step(method, hp)))


def _count_in_a_step(method: str, hp: str) -> float:
    peaks: list[float] = []
    for lanes in (2, 6):
        with MemoryMeter() as footprint:
            federation = _small(method, hp, *STAND_IN, 6, steps=1)
            federation.engine.lanes = lanes
            federation.advance()
            peaks.append(footprint.peak / federation.server.initial_model().weights.nbytes)
    return (peaks[1] - peaks[0]) / 4


def _kept(what: str, method: str, hp: str, count: Callable[[], Any]) -> Any:
    """Return the count of an earlier process that had the same code; else count now."""
    key = method_key(method, hp, what)
    known = read_kept("models")
    if key in known:
        return known[key]
    counted = count()
    if key is not None:
        keep("models", {**read_kept("models"), key: counted})
    return counted


class StepBytes(NamedTuple):
    """Bytes in float32 of a model without frozen tensors, of its gradient at its peak, and of an evaluation."""

    model: int
    gradient: float
    evaluation: float


@functools.cache
def step_bytes(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    options: str,
    batch: int,
    device: str,
    frozen: Prefixes = (),
    adapters: AdapterSettings | None = None,
) -> StepBytes:
    """Count the bytes of one gradient of a model and of one evaluation; `options` are the model's, as JSON.

    Tensors have shapes only, but for a network that reads numbers, and one with an LSTM: its kernel on a CPU has other
    tensors than its operations.
    """
    net = build(name, shape, classes, json.loads(options), adapters)
    if not any(isinstance(layer, nn.LSTM) for layer in net.modules()):
        with contextlib.suppress(Exception), without_draws(0):
            return _step_bytes(name, net, shape, classes, options, batch, device, frozen, "meta")
    return _step_bytes(name, net, shape, classes, options, batch, device, frozen, "cpu")


def _step_bytes(
    name: str,
    net: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    options: str,
    batch: int,
    device: str,
    frozen: Prefixes,
    place: str,
) -> StepBytes:
    values = initial_values(net, name, shape, classes, json.loads(options), ("estimate", name))
    tensors = {key: value.to(place) for key, value in values.items()}
    weights = [tensors[e.name].requires_grad_() for e in Spec.of(name, net).params if not e.under(frozen)]
    samples = noise(shape, classes, 4, generator("estimate", name))
    x, y = (t.to(place) for t in Pool.of(samples, torch.device("cpu"), torch.float32).take(torch.arange(4)))

    def gradient(samples: int) -> None:
        loss = nn.functional.cross_entropy(functional_call(net, tensors, (x[:samples],)), y[:samples])
        torch.autograd.grad(loss, weights)

    def evaluation(samples: int) -> None:
        with torch.no_grad():
            functional_call(net, tensors, (x[:samples],))

    evaluated = samples_at_once(device, convolutional=is_convolutional(Spec.of(name, net)))
    size = sum(weight.nbytes for weight in weights)
    return StepBytes(size, _bytes_of(gradient, batch), _bytes_of(evaluation, evaluated))


def _bytes_of(work: Callable[[int], None], samples: int) -> float:
    """Return the peak bytes of work on `samples` samples, extrapolated from two and four samples."""
    peaks: list[float] = []
    for few in (2, 4):
        with MemoryMeter() as footprint:
            work(few)
        peaks.append(footprint.peak)
    return peaks[0] + (peaks[1] - peaks[0]) / 2 * (samples - 2)


def working_bytes(settings: Settings, shape: tuple[int, ...], classes: int, device: str, lanes: int) -> float:
    """Return the bytes of clients' steps side by side or of an evaluation, in the cell's type, whichever is more.

    A step needs a plain gradient and what the method adds to it, counted with a small network.
    """
    options = json.dumps(settings.model_options, sort_keys=True)
    net = build(settings.model, shape, classes, settings.model_options, settings.adapters)
    frozen = tuple(e.name for e in cell_spec(settings, settings.model, net).frozen)
    network = settings.model, shape, classes, options
    step = step_bytes(*network, settings.batch_size, device, frozen, settings.adapters)
    small = step_bytes(*STAND_IN, 2, "cpu")
    beyond = in_a_step(settings.method, json.dumps(settings.hp, sort_keys=True)) - small.gradient / small.model
    in_steps = step.gradient + max(0.0, beyond) * step.model
    width = torch.finfo(getattr(torch, settings.dtype)).bits / 32
    return width * max(in_steps * lanes, step.evaluation)


def _small(
    method: str, hp: str, model: str, shape: tuple[int, ...], classes: int, options: str, clients: int, steps: int = 0
) -> Federation:
    """Build a federation of few samples. Without steps it costs little even for a large network, and keeps as much."""
    rng = generator("estimate", method)
    n_train = 2 * clients
    data = replace(noise(shape, classes, n_train + 4, rng), n_train=n_train)
    # Counts are in units of what is trained, so that the rank is no matter but to methods with ranks of their own.
    adapters = LoraSettings(name="lora", rank=256) if METHODS.get(method).adapter == "lora" else None
    settings = Settings(
        method=method,
        hp=_fewest(method, json.loads(hp), steps),
        clients=clients,
        model=model,
        model_options=json.loads(options),
        steps=steps,
        batch_size=2,
        adapters=adapters,
    )
    train = tuple(np.arange(i * 2, i * 2 + 2) for i in range(clients))
    empty = tuple(np.zeros(0, np.int64) for _ in range(clients))
    partition = Partition(train, empty, empty, np.arange(n_train, n_train + 4))
    return Federation(settings, dataset=data, partition=partition, public=data, executor="cohort")


def _fewest(method: str, hp: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the hyperparameters with their epochs and steps set to `steps`, else to 1, if their class accepts that."""
    kind: type[Hyperparameters] = METHODS.get(method).Hyper
    for key in [key for key in hp if key.endswith(("_epochs", "_steps"))]:
        for count in (steps, 1):
            with contextlib.suppress(ValidationError):
                hp = kind(**{**hp, key: count}).model_dump()
                break
    return hp
