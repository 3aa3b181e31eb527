"""FedGH against its algorithm in plain torch, in the first round Local's, and with two architectures."""

import numpy as np
import pytest
import torch

from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import descend_on, features, plain
from tests.methods.reference import LR, PLAIN, initial, local_batches, local_data, near, softmax

SIZES = [9, 5]


@pytest.mark.parametrize("server_lr", [None, 0.3])
def test_follows_the_algorithm(server_lr: float | None) -> None:
    """Two clients, three rounds; the server goes through the class means one by one, in the order of clients."""
    federation = toy("fedgh", sizes=SIZES, hp={"server_lr": server_lr}, **PLAIN)
    run(federation, 3)
    start = initial(federation)
    bodies, head = [start[:12]] * 2, start[12:].reshape(3, 3)
    for t in range(3):
        sent = []
        for i in range(2):
            w = descend_on(np.concatenate([bodies[i], head.ravel()]), local_batches(SIZES, t, i), plain)
            bodies[i] = w[:12]
            x, y = local_data(SIZES, i)
            z = features(torch.tensor(w), torch.tensor(x)).numpy()
            sent += [(z[y[:, c] == 1].mean(0), c) for c in range(3) if y[:, c].any()]
        for z, c in sent:
            error = softmax((head @ z)[None])[0] - np.eye(3)[c]
            head = head - (server_lr or LR) * np.outer(error, z)
    near(federation.server.state["head"].weights, head.ravel())
    for i, w in personal(federation).items():
        near(w, np.concatenate([bodies[i], head.ravel()]))


def test_bodies_of_the_first_round_are_locals() -> None:
    """With BatchNorm; from the second round on they are not: the head is another."""
    for rounds in (1, 2):
        local, federation = toy("local", model="test_norm"), toy("fedgh", model="test_norm")
        run(local, rounds)
        run(federation, rounds)
        same = []
        for i, w in local.evaluator.personal(rounds).items():
            body = w.without("head")
            same.append(torch.equal(federation.clients[i].state["body"].weights, body.weights))
        assert all(same) == (rounds == 1)


def test_the_head_stays_with_learning_rate_zero() -> None:
    federation = toy("fedgh", hp={"server_lr": 0.0})
    run(federation, 2)
    assert torch.equal(federation.server.state["head"].weights, federation.server.initial_model().part("head").weights)


def test_two_architectures_share_the_head() -> None:
    """A linear model and one with as wide features; means and head travel. Other widths are refused."""
    federation = toy("fedgh", sizes=SIZES, model="mlp", model_options={"hidden": 6}, client_models=["mlp", "test_norm"])
    run(federation, 2)
    models = list(federation.evaluator.personal(2).values())
    assert len({w.spec.arch for w in models}) == 2
    assert torch.equal(models[0].part("head").weights, models[1].part("head").weights)
    assert not torch.equal(models[0].part("head").weights, federation.server.initial_model().part("head").weights)
    row = federation.ledger[-1]
    assert (row["up"], row["down_receivers"]) == (2 * 8 * (3 * 6 + 3), 2 * 8 * (3 * 6 + 3))
    with pytest.raises(ValueError, match=r"FedGH needs features of one width: test_norm.* has 6, the cell's 3"):
        toy("fedgh", sizes=SIZES, client_models=["test_linear", "test_norm"]).advance()
