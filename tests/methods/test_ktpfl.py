"""KT-pFL against its formulas: personal mixtures of predictions, and coefficients that are learned on the server."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.engine.batches import steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed, Message
from methods.ktpfl import Hyper, divergence_gradient
from methods.simplex import onto_simplex
from tests.engine.problems import personal, run, toy
from tests.methods.reference import (
    LR,
    PLAIN,
    PUBLIC,
    PUBLIC_X,
    Array,
    backward,
    batches,
    gradient,
    initial,
    local_batches,
    logits,
    near,
    softmax,
)

SIZES = [9, 5, 7]
TEMPERATURE, LAM, RHO, ETA3 = 2.0, 3.0, 0.2, 0.7  # coefficients that move well away from 1/K
HYPER = {"temperature": TEMPERATURE, "lam": LAM, "rho": RHO, "eta3": ETA3, "distil_epochs": 2, "distil_batch": 5}
VECTOR = st.lists(st.floats(-3, 3), min_size=1, max_size=8)


def coefficients(federation: Federation) -> torch.Tensor:
    return federation.method.relations(federation.server)["coefficients"]


def projected(v: Array) -> Array:
    """The nearest point of the simplex, by bisection for theta in sum_j max(v_j - theta, 0) = 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - (low + high) / 2, 0)


class Reference:
    """KT-pFL in numpy, one round at a time and one client after the other."""

    def __init__(self, federation: Federation) -> None:
        self.sizes = list(federation.server.sizes.values())
        self.own, self.c = [initial(federation)] * len(self.sizes), np.full((len(self.sizes),) * 2, 1 / len(self.sizes))

    def round(self, t: int, selected: list[int]) -> None:
        for i in selected:
            for x, y in local_batches(self.sizes, t, i):
                self.own[i] = self.own[i] - LR * gradient(self.own[i], x, y)
        s = {i: softmax(logits(self.own[i], PUBLIC_X) / TEMPERATURE) for i in selected}
        old = self.c.copy()
        for k in selected:
            mass = sum(old[k, j] for j in selected)
            share = {j: old[k, j] / mass for j in selected}
            target = sum(share[j] * s[j] for j in selected)
            self.distil(k, target, t)
            slope = {j: np.mean((s[j] * (np.log(target / s[k]) + 1)).sum(1)) for j in selected}
            moved = [share[j] - ETA3 * (LAM * slope[j] + 2 * RHO * (share[j] - 1 / len(self.sizes))) for j in selected]
            self.c[k, selected] = mass * projected(np.array(moved))

    def distil(self, k: int, target: Array, t: int) -> None:
        n, steps = len(PUBLIC_X), 2 * steps_per_epoch(len(PUBLIC_X), 5, batch_statistics=False)
        for p in batches(Feed("public", 5), n, n, steps, t, k):
            soft = softmax(logits(self.own[k], PUBLIC_X[p]) / TEMPERATURE)
            slope = backward(self.own[k], PUBLIC_X[p], (soft - target[p]) / TEMPERATURE / len(p))
            self.own[k] = self.own[k] - LR * LAM * slope


@pytest.mark.parametrize(("sizes", "participation"), [(SIZES, 1.0), ([9, 5, 7, 4, 6], 0.6)])
def test_follows_the_formulas(sizes: list[int], participation: float) -> None:
    """Train, predict, mix, distil; the coefficients of the selected clients take a step within their rows' mass."""
    federation = toy("ktpfl", sizes=sizes, public=PUBLIC, hp=HYPER, participation=participation, **PLAIN)
    reference = Reference(federation)
    seen = set()
    for t in range(4):
        run(federation, 1)
        reference.round(t, federation.server.selected)
        seen.add(tuple(federation.server.selected))
        near(coefficients(federation), reference.c)
        for i, w in personal(federation).items():
            near(w, reference.own[i])
    assert all(len(selected) == 3 for selected in seen)
    assert (len(seen) > 1) == (participation < 1)
    assert np.abs(reference.c - 1 / len(sizes)).max() > 0.02


def test_the_gradient_of_the_divergence_is_finite_where_probabilities_have_underflowed() -> None:
    certain = torch.eye(3, dtype=torch.float64)[torch.tensor([[0, 1, 2], [0, 0, 1]])]
    assert divergence_gradient(certain, certain).isfinite().all()


@given(VECTOR)
def test_the_projection_is_the_nearest_distribution(v: list[float]) -> None:
    """From p no corner, and so no other distribution, lies in the direction of v; and p is what bisection finds."""
    point = torch.tensor(v, dtype=torch.float64)
    p = onto_simplex(point[None])[0]
    assert (p >= 0).all()
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert float((point - p).max() - (point - p) @ p) <= 1e-12
    near(p, projected(point.numpy()))


def test_a_row_without_mass_on_the_selected_takes_their_mean() -> None:
    """There is nothing to renormalise, and nothing that could move."""
    federation = toy("ktpfl", public=PUBLIC, sizes=SIZES, hp=HYPER)
    server = federation.server
    server.state["coefficients"] = c = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]).double()
    s = torch.rand(2, 12, 3, dtype=torch.float64).softmax(2)
    replies = federation.method.reply(server, [Message(i, {"predictions": s[i]}, 1.0, 0) for i in (0, 1)])
    torch.testing.assert_close(replies[0]["target"], s.mean(0))
    assert torch.equal(coefficients(federation)[[0, 2]], c[[0, 2]])


def test_a_step_past_equal_coefficients_is_refused() -> None:
    """The explicit step on rho's term multiplies c - 1/K by 1 - 2 eta3 rho."""
    Hyper(rho=5.0, eta3=0.1)
    with pytest.raises(ValidationError, match="2 eta3 rho"):
        Hyper(rho=5.1, eta3=0.1)
