"""FedCP against its formulas in plain torch; a gate that is stuck makes it FedPer or FedBABU."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.federation.federation import Federation
from methods.fedcp import discrepancy
from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.by_autograd import features
from tests.methods.reference import LR, PLAIN, initial, local_batches, near

SIZES = [9, 5]
LAM = 0.7
D = 3


def gated(w: Tensor, gate: Tensor, head: Tensor, context: Tensor, x: Tensor) -> Tensor:
    """Sample by sample; the gate's weights are a linear layer from 3 to 6 and a normalisation of 6."""
    rows = []
    for z in features(w, x):
        hidden = gate[:18].view(6, 3) @ (z * context) + gate[18:24]
        scores = functional.layer_norm(hidden, (6,), gate[24:30], gate[30:36]).relu()
        a = torch.stack([torch.softmax(torch.stack([scores[k], scores[k + D]]), 0)[0] for k in range(D)])
        rows.append(w[12:].view(3, 3) @ (a * z) + head.view(3, 3) @ ((1 - a) * z))
    return torch.stack(rows)


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Pair by pair."""
    total = a.new_zeros(())
    for width in (10, 15, 20, 50):
        for first, second, sign in ((a, a, 1), (b, b, 1), (a, b, -2)):
            for p in first:
                for q in second:
                    total = total + sign * torch.exp(-((p - q) ** 2).sum() / (2 * width)) / len(a) ** 2
    return total


def context_of(head: Tensor) -> Tensor:
    return head.view(3, 3).sum(0) / head.view(3, 3).sum(0).norm()


@pytest.mark.parametrize(("sizes", "participation"), [([9, 5], 1.0), ([9, 5, 7], 0.67)])
def test_follows_the_formulas(sizes: list[int], participation: float) -> None:
    """Three rounds of all clients, or of two of three; a client that was away is tested by its last head, too."""
    federation = toy("fedcp", sizes=sizes, hp={"lam": LAM}, participation=participation, **PLAIN)
    gate = federation.server.state["gate"].weights
    w0 = torch.tensor(initial(federation))
    body, head, heads = w0[:12], w0[12:], [w0[12:]] * len(sizes)
    for t in range(3):
        federation.advance()
        sent = {}
        for i in federation.server.selected:
            w, g, context = torch.cat([body, heads[i]]), gate, context_of(heads[i])
            for bx, by in local_batches(sizes, t, i):
                x, y = torch.tensor(bx), torch.tensor(by)
                v, h = w.clone().requires_grad_(), g.clone().requires_grad_()
                fit = (y * torch.log_softmax(gated(v, h, head, context, x), 1)).sum(1).mean()
                loss = LAM * mmd(features(v, x), features(torch.cat([body, w0[12:]]), x)) - fit
                a, b = torch.autograd.grad(loss, (v, h))
                w, g = w - LR * a, g - LR * b
            heads[i] = w[12:]
            sent[i] = (w[:12], g, (w[12:] + head) / 2)
        assert len(sent) == round(participation * len(sizes))
        whole = sum(sizes[i] for i in sent)
        body, gate, head = (
            sum(sizes[i] / whole * one[k] for i, one in sent.items())  # type: ignore[misc]
            for k in range(3)
        )
    for i, w in personal(federation).items():
        parts = [body, heads[i], gate, head, context_of(heads[i])]
        near(w, torch.cat(parts).numpy())


def test_a_client_is_tested_by_both_heads() -> None:
    federation = toy("fedcp", sizes=SIZES, **PLAIN)
    scores = run(federation, 2)
    state, data = federation.server.state, toy_data()
    losses = []
    for i in range(2):
        own, at = federation.clients[i].state["head"].weights, federation.device_data.partition.test[i]
        w = torch.cat([state["body"].weights, own])
        rows = gated(
            w, state["gate"].weights, state["head"].weights, context_of(own), torch.tensor(data.x[at]).double()
        )
        losses.append(float(functional.cross_entropy(rows, torch.tensor(data.y[at]))))
    row = next(r for r in scores.metrics if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-10)


def stuck(own: bool) -> Federation:
    """Its gate gives everything to one of the heads, whatever it sees."""
    federation = toy("fedcp", hp={"lam": 0.0})
    gate = federation.server.state["gate"]
    scores = torch.zeros(2, D, dtype=torch.float64)
    scores[0 if own else 1] = 60.0
    weights = torch.cat([torch.zeros(30, dtype=torch.float64), scores.flatten()])
    federation.server.state["gate"] = gate.with_weights(weights)
    run(federation, 3)
    return federation


@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_stuck_gate(own: bool) -> None:
    """With the own head alone it is FedPer; with the received one, which then never moves, FedBABU."""
    federation = stuck(own)
    other = toy("fedper") if own else toy("fedbabu", hp={"fine_tune_epochs": 0})
    run(other, 3)
    models = federation.evaluator.personal(3)
    for i, w in personal(other).items():
        torch.testing.assert_close(models[i].part("w").weights, w, rtol=1e-12, atol=1e-14)
    free = toy("fedcp", hp={"lam": 0.0})
    run(free, 3)
    assert not torch.allclose(free.evaluator.personal(3)[0].part("w").weights, personal(other)[0])


def test_the_discrepancy_of_equal_sets_is_0_and_padding_does_not_count() -> None:
    a, b = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.tensor([0.25, 0.25, 0.25, 0.25, 0]).double()
    assert float(discrepancy(a, a.flip(0), torch.full((5,), 0.2).double()).abs()) < 1e-12
    torch.testing.assert_close(discrepancy(a, b, share), mmd(a[:4], b[:4]))


def test_the_larger_lam_the_nearer_features_stay() -> None:
    away = []
    for lam in (0.0, 1.0, 10.0):
        federation = toy("fedcp", sizes=[9], hp={"lam": lam}, momentum=0.0)
        federation.advance()
        x = torch.from_numpy(toy_data().x[:9]).double()
        old, new = (
            features(w.weights, x)
            for w in (federation.server.initial_model(), federation.evaluator.personal(1)[0].part("w"))
        )
        away.append(float(mmd(old, new)))
    assert away[0] > away[1] > away[2]
