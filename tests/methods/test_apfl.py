"""APFL against its formulas and at its extremes."""

import numpy as np
import pytest
import torch

from methods import apfl
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]


@pytest.mark.parametrize("adaptive", [True, False])
def test_follows_the_formulas(adaptive: bool) -> None:
    """Two clients, two rounds, several steps each."""
    federation = toy("apfl", sizes=SIZES, hp={"alpha": 0.3, "adaptive": adaptive}, **PLAIN)
    run(federation, 2)
    generic_w = initial(federation)
    own, alpha = [generic_w, generic_w], [0.3, 0.3]
    for t in range(2):
        sent = []
        for i in range(2):
            w, v, a = generic_w, own[i], alpha[i]
            for k, (x, y) in enumerate(local_batches(SIZES, t, i)):
                slope = gradient(a * v + (1 - a) * w, x, y)
                moved = min(1.0, max(0.0, a - LR * float((v - w) @ slope))) if adaptive and k == 0 else a
                w, v, a = w - LR * gradient(w, x, y), v - LR * a * slope, moved
            own[i], alpha[i] = v, a
            sent.append(w)
        generic_w = np.average(sent, axis=0, weights=SIZES)
    near(generic(federation), generic_w)
    for i in range(2):
        near(personal(federation)[i], alpha[i] * own[i] + (1 - alpha[i]) * generic_w)
        assert (alpha[i] != 0.3) == adaptive


def test_fixed_alpha_zero_freezes_the_own_model() -> None:
    """The personalized model is the generic one, bit for bit."""
    federation = toy("apfl", hp={"alpha": 0.0, "adaptive": False})
    run(federation, 2)
    assert all(torch.equal(w, generic(federation)) for w in personal(federation).values())
    assert torch.equal(federation.clients[0].state["own"].weights, federation.server.initial_model().weights)


def test_alpha_stays_in_the_unit_interval() -> None:
    """Also with a learning rate far too large."""
    federation = toy("apfl", lr=5.0, momentum=0.0)
    run(federation, 3)
    alphas = [float(federation.clients[i].state["alpha"]) for i in federation.clients.ids]
    assert all(0 <= a <= 1 for a in alphas)
    assert {0.0, 1.0} & set(alphas)  # some were held back


def test_extremes_are_announced() -> None:
    """A fixed alpha of 0 or 1 says what it amounts to; an adaptive one may leave it."""
    assert "Local" in apfl.Hyper(alpha=1.0, adaptive=False).degenerate()[0]
    assert "FedAvg" in apfl.Hyper(alpha=0.0, adaptive=False).degenerate()[0]
    assert apfl.Hyper(alpha=1.0).degenerate() == []
