"""pFedMe against its formulas and at its extremes."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.problems import generic, personal, remarks, run, toy
from tests.methods.reference import PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]


def test_follows_algorithm_1() -> None:
    """Two clients, two rounds: K steps per batch, warm-started, then a step of w towards the result."""
    lam, K, eta, eta_p, beta = 3.0, 2, 0.02, 0.05, 0.7
    hp = {"lam": lam, "K": K, "eta": eta, "eta_p": eta_p, "beta": beta}
    federation = toy("pfedme", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 2)
    w, thetas = initial(federation), {}
    for t in range(2):
        sent = []
        for i in range(2):
            local = theta = w
            for x, y in local_batches(SIZES, t, i):
                for _ in range(K):
                    theta = theta - eta_p * (gradient(theta, x, y) + lam * (theta - local))
                local = local - eta * lam * (local - theta)
            sent.append(local)
            thetas[i] = theta
        w = (1 - beta) * w + beta * np.average(sent, axis=0, weights=SIZES)
    near(generic(federation), w)
    for i, theta in thetas.items():
        near(personal(federation)[i], theta)


@pytest.mark.parametrize("hp", [{"beta": 0.0}, {"lam": 0.0}])
def test_generic_model_is_frozen(hp: dict[str, Any]) -> None:
    """Up to the rounding of the mean, while the personalized models train on; the cell says so."""
    federation = toy("pfedme", hp=hp)
    run(federation, 2)
    start = federation.server.initial_model().weights
    torch.testing.assert_close(generic(federation), start, rtol=0, atol=1e-14)
    assert all(not torch.allclose(w, start, rtol=1e-3) for w in personal(federation).values())
    assert remarks(federation)
    assert not remarks(toy("pfedme"))


def test_personalized_models_outlive_rounds_without_the_client() -> None:
    """The last theta is kept (a copy, not the model that the next broadcast overwrites)."""
    federation = toy("pfedme", participation=0.4)
    run(federation, 1)
    before, selected = personal(federation), federation.server.selected
    run(federation, 1)
    resting = [i for i in selected if i not in federation.server.selected]
    assert resting
    for i in resting:
        assert torch.equal(personal(federation)[i], before[i])
        assert not torch.equal(before[i], generic(federation))
