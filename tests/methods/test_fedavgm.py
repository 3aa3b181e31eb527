"""FedAvgM against its formula, and where it is FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from tests.engine.problems import generic, run, toy
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5]


def after(method: str, rounds: int, **settings: Any) -> Federation:
    federation = toy(method, **settings)
    run(federation, rounds)
    return federation


@pytest.mark.parametrize("nesterov", [False, True])
def test_follows_the_formula(nesterov: bool) -> None:
    """Two clients, three rounds."""
    hp = {"beta": 0.6, "server_lr": 0.5, "nesterov": nesterov}
    federation = toy("fedavgm", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 3)
    w, v = initial(federation), np.zeros(21)
    for t in range(3):
        sent = [descend(w, local_batches(SIZES, t, i)) for i in range(2)]
        delta = w - np.average(sent, axis=0, weights=SIZES)
        v = 0.6 * v + delta
        w = w - 0.5 * (delta + 0.6 * v if nesterov else v)
    near(generic(federation), w)


def test_first_round() -> None:
    """Heavy ball is FedAvg for every beta; Nesterov goes (1 + beta) times as far."""
    fedavg = after("fedavg", 1)
    start = fedavg.server.initial_model().weights
    delta = generic(fedavg) - start
    for beta in (0.3, 0.9):
        heavy = after("fedavgm", 1, hp={"beta": beta})
        torch.testing.assert_close(generic(heavy) - start, delta)
        nesterov = after("fedavgm", 1, hp={"beta": beta, "nesterov": True})
        torch.testing.assert_close(generic(nesterov) - start, (1 + beta) * delta)


def test_running_statistics_have_no_momentum() -> None:
    """They are the mean's, however far the weights go."""
    nesterov = after("fedavgm", 1, model="test_norm", hp={"nesterov": True})
    fedavg = after("fedavg", 1, model="test_norm")
    assert torch.equal(nesterov.server.state["model"].buffers, fedavg.server.state["model"].buffers)
    assert not torch.allclose(generic(nesterov), generic(fedavg))
