"""Estimate how long a cell will train by running and timing some rounds of a stand-in for it.

The stand-in has the cell's method, model, settings and numbers of clients and samples, but its data are noise. If a
round would take long, it has only some of the clients with some of their samples. The estimate therefore includes
second models, personal phases, evaluation and the gains of the executor. It does not include uneven partitions, new
clients, or cells that slow each other down.
"""

import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo  # workers have it preloaded; otherwise the first gradient would load it while it is timed

from bench.data import Dataset, Partition, noise
from bench.federation.federation import Federation
from bench.federation.setup import make_method
from bench.method import Arrivals
from bench.rng import generator
from bench.settings import Settings

_ROUND = 0.5  # seconds of plain steps up to which a round is run as it is
_ENOUGH = 6.0  # seconds of computing after which no more rounds are timed, once there are two
_SETTLED = 3  # number of last rounds that stand for those that were not run


class DataSize(NamedTuple):
    """Size of a data set: shape of a sample, numbers of classes, training and test samples, bytes of a number."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    itemsize: int = 1


class Rehearsal(NamedTuple):
    """Seconds of a cell whose steps have been recorded, and the extra seconds of the first cell of a worker."""

    seconds: float
    warm_up: float


class _Work(NamedTuple):
    """Work of a round: numbers of clients and of selected clients, and each client's samples and plain steps."""

    clients: int
    selected: int
    samples: int
    steps: int


def rehearse(settings: Settings, size: DataSize, plain_step: float, lanes: int, device: str, threads: int) -> Rehearsal:
    """Time the stand-in of a cell. Cells that differ only in seed and partition share one measurement.

    Args:
        plain_step: seconds of one gradient step of the cell's model.
        lanes: clients that train at a time; fewer clients would take as long.
    """
    same: dict[str, Any] = {
        "seed": 0,
        "partition_seed": None,
        "alpha": None,
        "label": "",
        "case": "",
        "partition_options": {},
    }
    return _rehearse(settings.model_copy(update=same).model_dump_json(), size, plain_step, lanes, device, threads)


@functools.cache
def _rehearse(plain: str, size: DataSize, plain_step: float, lanes: int, device: str, threads: int) -> Rehearsal:
    settings = Settings(**json.loads(plain))
    whole = _work(settings, size)
    part = _cut(whole, max(1, int(_ROUND / plain_step)), lanes)
    of_training = whole.selected * whole.steps / max(1, part.selected * part.steps)
    of_samples = whole.clients * whole.samples / (part.clients * part.samples)
    tests = max(1, round(size.test / of_samples))
    rounds, evaluations = _time(_stand_in(settings, size, whole, part, tests, device, threads), settings, device)
    settled = float(np.median(rounds[-_SETTLED:]))
    seconds = of_training * settled * settings.rounds
    seconds += of_samples * float(np.median(evaluations[-_SETTLED:])) * math.ceil(settings.rounds / settings.eval_every)
    return Rehearsal(seconds, sum(max(0.0, one - settled) for one in rounds))


def _work(settings: Settings, size: DataSize) -> _Work:
    share = 0.0 if settings.protocol == "paper" else settings.validation_share
    samples = max(1, round((1 - share) * size.train / settings.clients))
    trigger = make_method(settings).trigger
    selected = max(1, round(settings.participation * settings.clients))
    if isinstance(trigger, Arrivals):
        selected = min(trigger.k, settings.clients)
    elif make_method(settings).everyone or settings.unselected != "idle":
        selected = settings.clients
    epoch = math.ceil(samples / settings.batch_size)
    return _Work(
        settings.clients, selected, samples, settings.epochs * epoch if settings.steps is None else settings.steps
    )


def _cut(whole: _Work, affordable: int, lanes: int) -> _Work:
    """Return a part of a round with at most `affordable` steps: fewer clients first (but two, and one per lane), then
    fewer samples."""
    if whole.selected * whole.steps <= affordable:
        return whole
    clients = min(whole.selected, max(2, lanes, affordable // whole.steps))
    steps = min(whole.steps, max(1, affordable // clients))
    return _Work(clients, clients, max(1, math.ceil(whole.samples * steps / whole.steps)), steps)


def _stand_in(
    settings: Settings, size: DataSize, whole: _Work, part: _Work, tests: int, device: str, threads: int
) -> Federation:
    """Build a federation with data of noise that does this part of the cell's work."""
    changes: dict[str, object] = {"new_clients": 0, "stragglers": {}}
    if part != whole:
        changes |= {"clients": part.clients, "participation": 1.0}
        changes |= {"steps": part.steps} if settings.steps is not None else {}
    settings = settings.model_copy(update=changes)
    share = 0.0 if settings.protocol == "paper" else settings.validation_share
    each = part.samples, round(part.samples * share / (1 - share)), math.ceil(tests / part.clients)
    train, validation, test = (
        tuple(np.arange(n) + i * n + part.clients * sum(each[:k]) for i in range(part.clients))
        for k, n in enumerate(each)
    )
    common = np.concatenate(test)
    public = _noise(size, settings.public.size or min(size.train, 5000)) if settings.public else None
    data = replace(_noise(size, part.clients * sum(each)), n_train=part.clients * sum(each[:2]))
    return Federation(
        settings,
        dataset=data,
        partition=Partition(train, validation, test, common),
        device=device,
        threads=threads,
        public=public,
    )


def _noise(size: DataSize, samples: int) -> Dataset:
    return noise(size.shape, size.classes, samples, generator("estimate", samples))


def _time(federation: Federation, settings: Settings, device: str) -> tuple[list[float], list[float]]:
    """Return the seconds of each round and of each evaluation."""
    rounds: list[float] = []
    evaluations: list[float] = []
    until = time.process_time() + _ENOUGH  # CPU time of this process, which does not depend on other processes
    while len(rounds) < settings.rounds and (len(rounds) < 2 or time.process_time() < until):
        if len(rounds) > _SETTLED and max(rounds[-_SETTLED:]) < rounds[0] / 3:
            break  # its steps are recorded
        rounds.append(_seconds(federation.advance, device))
        if not evaluations or federation.version % settings.eval_every == 0:
            evaluations.append(_seconds(federation.evaluate, device))
    return rounds, evaluations


def _seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
