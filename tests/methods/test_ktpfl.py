"""KT-pFL against its formulas: personal mixtures of predictions, and coefficients that are learned on the server."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.data import Dataset, Partition
from bench.engine.batches import steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed, Message
from bench.rng import generator
from bench.settings import Settings
from methods.ktpfl import Hyper, KTpFL, divergence_gradient
from methods.simplex import onto_simplex
from tests.engine.problems import personal, run, toy, toy_data, toy_partition
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


def test_coefficients_of_pairs_that_were_not_selected_together_stay() -> None:
    """Bit for bit; all rows stay on the simplex."""
    federation = toy("ktpfl", public=PUBLIC, hp=HYPER, participation=0.4)
    ids = sorted(federation.server.sizes)
    for _ in range(5):
        before = federation.server.state["coefficients"]
        run(federation, 1)
        after = coefficients(federation)
        chosen = torch.tensor([i in federation.server.selected for i in ids])
        block = chosen[:, None] & chosen
        assert torch.equal(after[~block], before[~block])
        assert not torch.equal(after[block], before[block])


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("lam", [1.0, 1e3])
def test_rows_stay_on_the_simplex(lam: float, participation: float) -> None:
    """After every round, in single precision, at corners too."""
    hp = HYPER | {"lam": lam, "distil_epochs": 0}
    federation = toy("ktpfl", public=PUBLIC, hp=hp, participation=participation, dtype="float32")
    for _ in range(8):
        run(federation, 1)
        found = coefficients(federation)
        assert (found >= 0).all()
        torch.testing.assert_close(found.sum(1), torch.ones(5), rtol=0, atol=1e-6)
    assert bool((found == 0).any()) == (lam == 1e3)


@pytest.mark.parametrize("rho", [0.0, 1e6])
def test_a_large_rho_keeps_the_coefficients_equal(rho: float) -> None:
    """With the step that goes with it; without rho they leave within the same steps."""
    federation = toy("ktpfl", public=PUBLIC, hp=HYPER | {"rho": rho, "eta3": 4e-7 if rho else 0.4})
    run(federation, 3)
    away = float((coefficients(federation) - 1 / 5).abs().max())
    assert away < 1e-6 if rho else away > 1e-2


def test_without_steps_the_coefficients_stay_equal() -> None:
    """Then all clients have one target, the mean; and it is announced."""
    assert "equal" in Hyper(eta3=0.0).degenerate()[0]
    federation = toy("ktpfl", public=PUBLIC, hp={"eta3": 0.0})
    run(federation, 2)
    torch.testing.assert_close(coefficients(federation), torch.full((5, 5), 0.2, dtype=torch.float64))
    first, *others = answers(federation, torch.rand(5, 12, 3, dtype=torch.float64).softmax(2))
    for other in others:
        torch.testing.assert_close(other, first)


def answers(federation: Federation, s: torch.Tensor) -> list[torch.Tensor]:
    """The targets that the server would send for the predictions of all clients."""
    ids = sorted(federation.server.sizes)
    sent = [Message(i, {"predictions": p}, 1.0, 0) for i, p in zip(ids, s, strict=True)]
    replies = KTpFL(federation.method.hp).reply(federation.server, sent)
    return [replies[i]["target"] for i in ids]


@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_only_oneself_is_self_distillation(temperature: float) -> None:
    """The first step is on one's own predictions, without a slope at any temperature; without rho c stays there."""
    hp = {"temperature": temperature, "rho": 0.0}
    federation, alone = toy("ktpfl", public=PUBLIC, hp=hp), toy("local")
    federation.server.state["coefficients"] = torch.eye(5, dtype=torch.float64)
    run(federation, 2)
    run(alone, 2)
    torch.testing.assert_close(coefficients(federation), torch.eye(5, dtype=torch.float64))
    gap = max(float((w - personal(alone)[i]).abs().max()) for i, w in personal(federation).items())
    assert gap < 1e-12


def federation_of(sizes: list[int], order: list[int], data: Dataset, **settings: Any) -> Federation:
    """Clients of consecutive samples, numbered in some order; all batches are full."""
    part = toy_partition(data, sizes)
    lists = (part.train, part.validation, part.test)
    part = Partition(*(tuple(of[i] for i in order) for of in lists), part.global_test)
    hp = HYPER | {"distil_batch": 60}
    common: dict[str, Any] = PLAIN | {"method": "ktpfl", "model": "test_linear", "dtype": "float64", "batch_size": 60}
    return Federation(
        Settings(clients=len(sizes), hp=hp, **common | settings), dataset=data, partition=part, public=PUBLIC
    )


def test_clients_with_like_data_find_each_other() -> None:
    """Two clients have only the classes 1 and 2, two only class 0: a client's mate gives it more than the strangers."""
    data = toy_data()
    order = np.r_[np.argsort(data.y[:40] == 0, kind="stable"), 40:60]
    data = replace(data, x=data.x[order], y=data.y[order])
    zeros = int((data.y[:40] == 0).sum())
    half = (40 - zeros) // 2
    federation = federation_of([half, 40 - zeros - half, zeros // 2, zeros - zeros // 2], [0, 1, 2, 3], data, epochs=5)
    run(federation, 10)
    c = coefficients(federation)
    for k, mate in enumerate([1, 0, 3, 2]):
        strangers = [j for j in range(4) if j not in (k, mate)]
        assert float(c[k, mate]) > 1.2 * float(c[k, strangers].max())


def test_numbers_of_clients_do_not_matter() -> None:
    """In another order: the same models, and the coefficients in that order."""
    order = [2, 0, 1]
    one, two = (federation_of(SIZES, by, toy_data()) for by in ([0, 1, 2], order))
    run(one, 3)
    run(two, 3)
    torch.testing.assert_close(coefficients(two), coefficients(one)[order][:, order], rtol=1e-10, atol=1e-12)
    for new, old in enumerate(order):
        torch.testing.assert_close(personal(two)[new], personal(one)[old], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(coefficients(two), coefficients(one))


@pytest.mark.parametrize(("participation", "m"), [(1.0, 5), (0.6, 3)])
def test_clients_of_two_architectures(participation: float, m: int) -> None:
    """Only predictions travel: one matrix up and a personal one down for each selected client."""
    federation = toy(
        "ktpfl", public=PUBLIC, client_models=("test_linear", "test_norm"), participation=participation, hp=HYPER
    )
    scores = run(federation, 3)
    assert len({w.spec for w in federation.evaluator.personal(federation.version).values()}) == 2
    assert {row["metric"] for row in scores.metrics} == {"pm", "lm"}
    matrix = len(PUBLIC.y) * 3 * 8
    for row in federation.ledger:
        assert (row["up"], row["down_distinct"], row["down_receivers"]) == (m * matrix,) * 3
    assert federation.engine.fallbacks == []


def test_the_gradient_of_the_divergence() -> None:
    """That of autograd through the mixture, and finite where probabilities have underflowed to 0."""
    rng = generator("tests", "ktpfl")
    s = torch.from_numpy(rng.normal(size=(4, 6, 3))).softmax(2)
    c = torch.from_numpy(rng.random((4, 4))).softmax(1).requires_grad_()
    t = torch.einsum("kj,jxn->kxn", c, s)
    (expected,) = torch.autograd.grad((t * (t / s).log()).sum((1, 2)).div(6).sum(), c)
    torch.testing.assert_close(divergence_gradient(t.detach(), s), expected)
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


@given(VECTOR, st.floats(-5, 5))
def test_the_projection_ignores_constants_and_keeps_distributions(v: list[float], shift: float) -> None:
    """So it does not matter whether rho pulls to 1/K or to 1/m."""
    point = torch.tensor([v], dtype=torch.float64)
    torch.testing.assert_close(onto_simplex(point + shift), onto_simplex(point), rtol=0, atol=1e-12)
    torch.testing.assert_close(onto_simplex(point.softmax(1)), point.softmax(1), rtol=0, atol=1e-12)


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
