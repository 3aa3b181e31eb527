"""Small trainings whose time is measured."""

import itertools
from typing import Any

import numpy as np
import torch

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.settings import Settings
from tests.engine import problems  # noqa: F401 (its models)
from tests.engine.problems import everything

SIZES = (13, 7, 1, 0, 9)


def problem(repeat: bool) -> tuple[Dataset, Partition]:
    """Unequal clients; with `repeat` all images of a client are the same, so that order means nothing."""
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    x = rng.normal(size=(n + 10, 1, 16, 16)).astype(np.float32)
    y = rng.integers(3, size=n + 10)
    cuts = np.cumsum([0, *SIZES])
    train = tuple(np.arange(a, b) for a, b in itertools.pairwise(cuts))
    if repeat:
        for own in train:
            x[own], y[own] = x[own[:1]], y[own[:1]]
    tests = tuple(np.arange(n, n + 10) for _ in SIZES)
    none = tuple(np.zeros(0, np.int64) for _ in SIZES)
    return Dataset("speed", x, y, n, 3, (0.1,), (0.9,), ""), Partition(train, none, tests, np.arange(n, n + 10))


def two_rounds(method: str = "ditto", **options: Any) -> tuple[Federation, dict[str, torch.Tensor]]:
    """A small convolutional cell after two rounds; all its state, and how its models scored."""
    chosen = {"model": "cnn", "model_options": {"hidden": 8}, "clients": len(SIZES), "batch_size": 4, "momentum": 0.5}
    settings = Settings(method=method, **{**chosen, **options.pop("settings", {})})
    data, partition = problem(False)
    federation = Federation(settings, dataset=data, partition=partition, public=None, **options)
    for _ in range(2):
        federation.advance()
        scores = federation.evaluate().metrics
    return federation, everything(federation) | {"scores": torch.tensor([row["value"] for row in scores])}
