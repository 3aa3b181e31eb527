"""Batches of one sample under BatchNorm: refused before anything runs, by the setting's name; what works goes on."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Partition, noise
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.rng import generator
from bench.settings import Settings
from tests.engine.problems import run, toy

SAYS = "batch_size: 1: BatchNorm in model '{}' has no variance of a single sample; set `batch_size` to 2 or more"


def pictures(model: str, side: int, **settings: Any) -> Federation:
    data = noise((3, side, side), 3, 12, generator("tests", "batch of one"))
    none = np.zeros(0, np.int64)
    partition = Partition((np.arange(4), np.arange(4, 8)), (none, none), (none, none), np.arange(8, 12))
    chosen = Settings(method="fedavg", model=model, clients=2, batch_size=1, steps=1, **settings)
    return Federation(chosen, dataset=data, partition=partition, public=None)


@pytest.mark.parametrize(
    ("method", "models"),
    [
        *((method, {"model": "test_norm"}) for method in ("fedavg", "local", "ditto", "feddf")),
        ("local", {"client_models": ("test_linear", "test_norm")}),
    ],
)
def test_batches_of_one_are_refused_before_anything_is_trained(method: str, models: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=SAYS.format("test_norm")):
        toy(method, batch_size=1, **models)


@pytest.mark.long
def test_pictures_that_shrink_to_a_pixel_are_refused_and_larger_ones_train() -> None:
    """Of a map BatchNorm has as many values as the map has places, whatever the size of the batch."""
    with pytest.raises(UserError, match=SAYS.format("mobilenet_v3_small")):
        pictures("mobilenet_v3_small", 8)
    federation = pictures("mobilenet_v3_small", 32)
    federation.advance()
    assert federation.engine.notices == []


@pytest.mark.parametrize("model", ["test_linear", pytest.param("resnet18_gn", marks=pytest.mark.long)])
def test_without_batchnorm_batches_of_one_train(model: str) -> None:
    federation = toy("fedavg", model=model, batch_size=1) if model == "test_linear" else pictures(model, 8)
    federation.advance()
    assert federation.work["steps"] > 0


def test_clients_of_one_sample_train_with_frozen_statistics_still() -> None:
    federation = toy("fedavg", model="test_norm", batch_size=1, sizes=[1, 1, 1])
    start = federation.server.initial_model().weights.clone()
    federation.advance()
    assert not torch.equal(federation.server.state["model"].weights, start)


@pytest.mark.parametrize("executor", ["cohort", "sequential"])
@pytest.mark.parametrize(
    ("method", "hp"), [("feddf", {"distil_batch": 1}), ("fedmd", {"digest_batch": 1}), ("dsfl", {"distil_batch": 1})]
)
def test_a_method_s_own_batches_of_one_are_said_in_plain_words(method: str, hp: dict[str, int], executor: str) -> None:
    """Which of its settings are sizes of batches only the method knows, so they are met in training."""
    federation = toy(method, model="test_norm", hp=hp, executor=executor)
    with pytest.raises(UserError, match="BatchNorm one value per channel, which has no variance: make the method's"):
        run(federation, 2)


@pytest.mark.long
def test_a_method_that_looks_at_single_samples_with_frozen_statistics_goes_on() -> None:
    run(toy("comet", model="test_norm", hp={"public_batch": 1}), 1)
