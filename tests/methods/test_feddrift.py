"""FedDrift: FedAvg without drift, a model for each concept after one, merged as the models become alike."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.federation.federation import Federation
from bench.method import Client, Message, Train, Upload
from bench.plugin import METHODS
from bench.settings import Settings
from methods.feddrift import FedDrift

CELL: dict[str, Any] = {
    "method": "feddrift", "dataset": "digits", "clients": 10, "participation": 0.4, "rounds": 40, "model": "logistic",
    "lr": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_no_drift_is_invented_where_few_take_part_and_labels_differ(seed: int) -> None:
    """Each round is by 4 of 10 clients with other labels, so the accuracy on a client's data rises and falls."""
    federation = Federation.of(Settings(**{**CELL, "alpha": 0.1, "seed": seed}))
    for _ in range(40):
        federation.advance()
        assert list(federation.server.state["models"]) == ["model0"]


def test_a_drift_is_found_where_few_take_part() -> None:
    """Half of the clients have other labels after round 20; in the end they share a model, and the others another."""
    change = {"round": 20, "shifts": [{"name": "concept_shift", "clusters": 2}]}
    federation = Federation.of(Settings(**{**CELL, "partition": "iid", "timeline": [change]}))
    for version in range(40):
        federation.advance()
        assert version >= 20 or list(federation.server.state["models"]) == ["model0"]
    before, after = federation.engine.device_data.stages
    y = federation.engine.device_data.local.y.numpy()
    moved = [not np.array_equal(y[old], y[new]) for old, new in zip(before.train, after.train, strict=True)]
    uses = federation.server.state["uses"]
    assert sum(moved) == 5
    assert {(moved[i], uses[i]) for i in range(10)} == {(False, "model0"), (True, uses[moved.index(True)])}


# -- against the authors' code ----------------------------------------------------------------------------------------

CONCEPTS = [
    *[[0, 0, 0, 0, 0, 0]] * 3, *[[0, 0, 0, 1, 1, 0]] * 4, *[[0, 0, 0, 1, 1, 2]] * 3, *[[0, 3, 0, 1, 1, 0]] * 3,
    *[[2, 3, 0, 1, 1, 0]] * 4,
]  # fmt: skip
"""The concept of each of six clients, by step."""
_BEGUN = (3, 3, [0.895008, 0.895008, 0.895008, 0.574858, 0.574858, 0.895008])  # clients 3 and 4 begin a model each
_MERGED = (5, 2, [0.935202, 0.935202, 0.935202, 0.857065, 0.857065, 0.935202])
_THIRD = (7, 3, [0.945884, 0.945884, 0.945884, 0.928566, 0.928566, 0.58146])  # client 5 begins one, and then goes back
_FOURTH = [0.949369, 0.582399, 0.949369, 0.949421, 0.949421, 0.947152]  # client 1 begins one
_TAKEN_UP = (16, 4, [0.953254, 0.9541, 0.952234, 0.952353, 0.952353, 0.952199])  # client 0 has the third
REPLAYS = [
    (1, 4, [_BEGUN, (4, 2, [0.921804, 0.921804, 0.921804, 0.761729, 0.761729, 0.921804]), _MERGED, _THIRD,
            (10, 4, _FOURTH), _TAKEN_UP]),
    (2, 4, [_BEGUN, (4, 3, [0.921804, 0.921804, 0.921804, 0.767429, 0.767429, 0.921804]), _MERGED, _THIRD,
            (10, 4, _FOURTH), _TAKEN_UP]),
    # The model that client 5 left makes room for client 1, and there is none for client 0.
    (1, 3, [_BEGUN, _MERGED, _THIRD, (10, 3, _FOURTH),
            (16, 3, [0.437815, 0.9541, 0.717109, 0.952353, 0.952353, 0.717074])]),
]  # fmt: skip


class ToyServer:
    """The part of a server that the method reads; a model is its accuracies on four concepts and with six clients."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.round, self.sizes = 0, dict.fromkeys(range(6), 1)

    def initial_model(self) -> Tensor:
        return torch.full((10,), 0.1, dtype=torch.float64)


def accuracy(w: Tensor, concept: int, client: int) -> Tensor:
    return 0.98 * w[concept] + 0.02 * w[4 + client]


def client_round(method: FedDrift, server: ToyServer, client: Client, concept: int) -> Message:
    """Serve a client's program: training moves a model half way to 0.96 for concept and client, 0.2 elsewhere."""
    program = method.client_round(client, method.broadcast(server, client))
    request, answer = next(program), None  # type: Any, Any
    while not isinstance(request, Upload):
        if isinstance(request, Train):
            target = torch.full((10,), 0.2, dtype=torch.float64)
            target[[concept, 4 + client.id]] = 0.96
            answer = {"w": (request.values["w"] + target) / 2}
        else:
            answer = None, torch.stack([accuracy(w, concept, client.id) for w in request.models])
        request = program.send(answer)
    return Message(client.id, dict(request.values), 1, server.round)


@pytest.mark.parametrize(("isolation", "models", "expected"), REPLAYS)
def test_the_authors_code_has_the_same_models(isolation: int, models: int, expected: list[Any]) -> None:
    """Step, number of models, and the accuracy of each client's model on its concept after the step.

    Computed by `SoftClusterState.cluster_hierarchical` of github.com/microsoft/FedDrift, commit e4ac32f, with
    `H_A_C_{isolation}_10_0` and the same toy training: drifts, merging, isolation, a model in place of an unused one.
    """
    kind = METHODS.get("feddrift")
    method, server = kind(kind.Hyper(isolation=isolation, models=models)), ToyServer()
    clients = [Client(i, 1, torch.ones(1)) for i in range(6)]
    method.init(server)
    steps = []
    for server.round, concepts in enumerate(CONCEPTS):
        method.aggregate(server, [client_round(method, server, c, concepts[c.id]) for c in clients])
        state = server.state
        accuracies = [float(accuracy(state["models"][state["uses"][i]], k, i)) for i, k in enumerate(concepts)]
        steps.append((server.round, len(state["models"]), pytest.approx(accuracies, abs=1e-6)))
    assert [steps[step] for step, *_ in expected] == expected
