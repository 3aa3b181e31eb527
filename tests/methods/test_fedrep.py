"""FedRep against its formulas and at its extremes."""

import numpy as np
import pytest
import torch

from bench.engine.batches import DrawAddress
from tests.engine.problems import BOTH_MODELS, generic, personal, remarks, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, near

SIZES = [9, 5]
BODY = np.arange(21) < 12


def descend(w: Array, mask: Array, round: int, client: int, epochs: int) -> Array:
    """SGD on some of the weights."""
    for x, y in local_batches(SIZES, round, client, epochs):
        w = w - LR * mask * gradient(w, x, y)
    return w


def test_follows_algorithm_1() -> None:
    """Two clients, two rounds: heads first on the received body, then the body."""
    federation = toy("fedrep", sizes=SIZES, hp={"head_epochs": 3, "body_epochs": 2}, **PLAIN)
    run(federation, 2)
    body, models = initial(federation), [initial(federation)] * 2
    for t in range(2):
        for i in range(2):
            start = np.where(BODY, body, models[i])
            models[i] = descend(descend(start, ~BODY, t, i, 3), BODY, t, i, 2)
        body = np.average(models, axis=0, weights=SIZES)
    expected = [np.where(BODY, body, one) for one in models]
    for i in range(2):
        near(personal(federation)[i], expected[i])
    near(generic(federation), np.average(expected, axis=0, weights=SIZES))


def test_without_head_epochs_trains_as_fedbabu() -> None:
    """The bodies are the same bytes; the cell says so."""
    federation, fedbabu = toy("fedrep", hp={"head_epochs": 0}), toy("fedbabu")
    for one in (federation, fedbabu):
        run(one, 3)
    assert torch.equal(federation.server.state["body"].weights, fedbabu.server.state["body"].weights)
    assert remarks(federation)
    paper = toy("fedrep")
    run(paper, 3)
    assert not torch.allclose(paper.server.state["body"].weights, fedbabu.server.state["body"].weights)
    assert not remarks(paper)


@pytest.mark.parametrize("model", BOTH_MODELS)
def test_without_body_epochs_is_a_linear_probe(model: str) -> None:
    """The body keeps its weights and its running statistics while the heads learn; the cell says so."""
    federation = toy("fedrep", model=model, hp={"body_epochs": 0})
    run(federation, 2)
    start, body = federation.server.initial_model().without("head"), federation.server.state["body"]
    torch.testing.assert_close(body.weights, start.weights, rtol=0, atol=1e-14)
    torch.testing.assert_close(body.buffers, start.buffers, rtol=0, atol=1e-14)
    assert remarks(federation)
    if model == "test_linear":
        probe = toy("fedrep", sizes=SIZES, hp={"head_epochs": 2, "body_epochs": 0}, **PLAIN)
        run(probe, 1)
        near(personal(probe)[1], descend(initial(probe), ~BODY, 0, 1, 2))


def test_running_statistics_move_with_the_body() -> None:
    federation = toy("fedrep", model="test_norm")
    run(federation, 1)
    assert not torch.equal(federation.server.state["body"].buffers, federation.server.initial_model().buffers)


def test_new_clients_train_their_head_alone() -> None:
    federation = toy("fedrep", sizes=SIZES, **PLAIN)
    run(federation, 2)
    down = federation.clients.down(1)
    program = federation.method.adapt(federation.server, federation.clients.copy(1), down, 4)
    adapted = federation.engine.finish(1, program, DrawAddress(3, 7, 1))
    start = np.concatenate([down["body"].weights.numpy(), federation.clients[1].state["head"].weights.numpy()])
    near(adapted.weights, descend(start, ~BODY, 7, 1, 4))
