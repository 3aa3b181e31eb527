"""ER: FedAvg until the data change, then steps on a batch of the data and one of a memory of what was before."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from bench.data import Change, Partition
from bench.engine.device_data import DeviceData
from bench.federation.federation import Federation
from bench.settings import Settings
from tests.engine.problems import run, toy_data
from tests.methods.reference import DATA, X, Y, gradient, near

CELL: dict[str, Any] = {
    "dataset": "digits", "partition": "iid", "clients": 4, "rounds": 6, "model": "logistic", "lr": 0.1,
    "timeline": [{"round": 2, "shifts": [{"name": "concept_shift", "clusters": 2}]}],
}  # fmt: skip


def trained(method: str, rounds: int, **changes: Any) -> Federation:
    federation = Federation.of(Settings(**{**CELL, "method": method, **changes}))
    run(federation, rounds)
    return federation


def weights(federation: Federation) -> torch.Tensor:
    return federation.server.state["model"].weights


@pytest.mark.long
def test_it_is_fedavg_until_the_data_change_and_without_a_memory() -> None:
    """Bit for bit; likewise where a change takes no sample away."""
    assert torch.equal(weights(trained("er", 2)), weights(trained("fedavg", 2)))
    assert not torch.equal(weights(trained("er", 3)), weights(trained("fedavg", 3)))
    without = trained("er", 3, hp={"memory": 0})
    assert torch.equal(weights(without), weights(trained("fedavg", 3)))
    more: dict[str, Any] = {"timeline": [{"round": 2, "add_classes": 2}]}
    assert torch.equal(weights(trained("er", 4, **more)), weights(trained("fedavg", 4, **more)))


def test_one_step_by_hand() -> None:
    """One client, full batches, the whole past in its memory: a step along the mean of both gradients."""
    nothing = np.empty(0, np.int64)
    past, now = np.arange(8), np.arange(8, 16)
    after = Partition((now,), (nothing,), (nothing,), np.arange(40, 60))
    settings = Settings(
        method="er", clients=1, model="test_linear", dtype="float64", lr=0.1, batch_size=8, epochs=1, rounds=2
    )
    partition = replace(after, train=(past,), changes=(Change(1, after),))
    federation = Federation(settings, dataset=DATA, partition=partition, public=None)
    federation.advance()
    w = weights(federation).numpy()
    federation.advance()
    near(weights(federation), w - 0.1 * (gradient(w, X[past], Y[past]) + gradient(w, X[now], Y[now])) / 2)


def on_device(partition: Partition, seed: int) -> DeviceData:
    """The toy data in the parts of one client."""
    return DeviceData(toy_data(), partition, device=torch.device("cpu"), dtype=torch.float64, seed=seed)


@bounds(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 39), unique=True, min_size=1, max_size=12), min_size=2, max_size=5),
       st.integers(1, 8))  # fmt: skip
def test_a_memory_is_a_reservoir(stages: list[list[int]], size: int) -> None:
    """What it holds was in the data before and is no longer, as much as there is room for."""
    nothing = np.empty(0, np.int64)

    def partition(indices: list[int], *changes: Change) -> Partition:
        return Partition((np.sort(np.array(indices)),), (nothing,), (nothing,), nothing, changes=changes)

    later = [Change(k, partition(indices)) for k, indices in enumerate(stages[1:], start=1)]
    data, again = (on_device(partition(stages[0], *later), seed=0) for _ in range(2))
    held: list[set[int]] = []
    for number, indices in enumerate(stages):
        data.enter(number)
        past = {i for stage in stages[:number] for i in stage} - set(indices)
        memory = set(data.positions(0, "earlier", size).tolist())
        assert memory <= past
        assert len(memory) == min(size, len(past))
        assert data.n_earlier(0) == len(past)
        assert set(data.positions(0, "earlier").tolist()) == past
        held.append(memory)
    again.enter(len(stages) - 1)
    assert set(again.positions(0, "earlier", size).tolist()) == held[-1]


def test_every_sample_is_as_likely_to_be_kept() -> None:
    """Two earlier stages of five samples each; by 400 seeds, four standard deviations around one half."""
    nothing, counts = np.empty(0, np.int64), np.zeros(10)
    last, second, first = (
        Partition((np.arange(*ends),), (nothing,), (nothing,), nothing) for ends in ((10, 15), (5, 10), (0, 5))
    )
    partition = replace(first, changes=(Change(1, second), Change(2, last)))
    for seed in range(400):
        data = on_device(partition, seed)
        data.enter(2)
        counts[data.positions(0, "earlier", 5)] += 1
    assert abs(counts - 200).max() < 40
