"""FedDrift: FedAvg without drift, a model for each concept after one, merged as the models become alike."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from bench.federation.federation import Federation
from bench.method import Message
from bench.plugin import METHODS
from bench.settings import Settings
from methods.feddrift import clusters, names
from tests.engine.problems import personal, run, toy

CELL: dict[str, Any] = {
    "method": "feddrift", "dataset": "digits", "partition": "iid", "clients": 6, "rounds": 20, "model": "logistic",
    "lr": 0.1, "timeline": [{"round": 6, "shifts": [{"name": "concept_shift", "clusters": 2}]}],
}  # fmt: skip


def test_without_a_drift_it_is_fedavg() -> None:
    """Bit for bit, with running statistics."""
    drift, fedavg = toy("feddrift", hp={"delta": 1e9}, model="test_norm"), toy("fedavg", model="test_norm")
    for federation in (drift, fedavg):
        run(federation, 3)
    for w in personal(drift).values():
        assert torch.equal(w, fedavg.server.state["model"].weights)
    assert names(drift.server.state) == ["model0"]


def test_a_client_that_drifts_begins_a_model_from_the_initial_one() -> None:
    """Half of the clients have other labels after round 6; nobody has drifted before."""
    federation = Federation.of(Settings(**{**CELL, "hp": {"delta": 0.5}}))
    for _ in range(6):
        federation.advance()
    assert names(federation.server.state) == ["model0"]
    before = federation.server.state["model0"]
    losses = {i: federation.clients[i].state["loss"] for i in range(6)}
    federation.advance()
    moved = {i for i in range(6) if federation.clients[i].state["loss"] > losses[i] + 0.5}
    before_and_after = [
        [labels(federation, indices) for indices in stage.train] for stage in federation.engine.device_data.stages
    ]
    other = {i for i, (old, new) in enumerate(zip(*before_and_after, strict=True)) if not torch.equal(old, new)}
    assert moved == other
    assert len(moved) == 3
    assert names(federation.server.state) == [f"model{k}" for k in range(4)]
    assert not torch.equal(federation.server.state["model0"].weights, before.weights)


def labels(federation: Federation, at: Any) -> torch.Tensor:
    return federation.engine.device_data.local.y[torch.from_numpy(at)]


def message(client: int, number: int, losses: list[float], weight: float, value: float) -> Message:
    model, row = torch.full((2,), value, dtype=torch.float64), torch.tensor(losses, dtype=torch.float64)
    return Message(client, {"model": model, "number": number, "losses": row}, weight, 0)


class FakeServer:
    """What `aggregate` reads of a server."""

    def __init__(self, models: int) -> None:
        self.state: dict[str, Any] = {f"model{k}": torch.zeros(2, dtype=torch.float64) for k in range(models)}
        self.state["begun"] = models
        self.round = 3


def aggregated(models: int, messages: list[Message], delta: float) -> dict[str, Any]:
    kind = METHODS.get("feddrift")
    server = FakeServer(models)
    kind(kind.Hyper(delta=delta)).aggregate(server, messages)
    return server.state


def test_models_are_merged_that_do_as_well_on_each_others_clients() -> None:
    """By hand: D(0, 1) = max(0.5 - 0.3, 0.4 - 0.35) = 0.2; model 2 is far from both; nobody chose model 3."""
    messages = [
        message(0, 0, [0.3, 0.4, 2.0, 9.0], 3, 1.0),
        message(1, 1, [0.5, 0.35, 2.0, 9.0], 1, 5.0),
        message(2, 2, [2.0, 2.0, 0.1, 9.0], 2, 7.0),
        message(3, -1, [2.0, 2.0, 3.0, 9.0], 2, 8.0),
    ]
    state = aggregated(4, messages, 0.21)
    assert {name: float(state[name][0]) for name in names(state)} == {
        "model0": pytest.approx((3 * 1 + 5) / 4), "model2": 7.0, "model3": 0.0, "model4": 8.0,
    }  # fmt: skip
    assert state["begun"] == 5
    apart = aggregated(4, messages, 0.2)
    assert [float(apart[name][0]) for name in names(apart)] == [1.0, 5.0, 7.0, 0.0, 8.0]


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(1, 1000), st.integers(0, 2**31))
def test_clusters_are_those_of_complete_linkage(models: int, delta: int, seed: int) -> None:
    """By scipy, which merges at its threshold, too; so that lies between two of these whole numbers."""
    condensed = np.random.default_rng(seed).permutation(1000)[: models * (models - 1) // 2].astype(float)
    distances = squareform(condensed)
    of = fcluster(linkage(condensed, "complete"), delta - 0.5, "distance")
    expected = {tuple(i for i in range(len(of)) if of[i] == k) for k in set(of)}
    assert {tuple(group) for group in clusters(torch.tensor(distances), delta)} == expected


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert names({"model10": 0, "model9": 0, "begun": 11}) == ["model9", "model10"]
