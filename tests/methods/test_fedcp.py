"""FedCP against its formulas in plain torch; a gate that is stuck makes it FedPer."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.by_autograd import features
from tests.methods.reference import LR, PLAIN, initial, local_batches, near

SIZES = [9, 5, 7]
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


def test_follows_the_formulas() -> None:
    """Two of three clients in each of three rounds; one that was away is tested by its last head, and all by both."""
    federation = toy("fedcp", sizes=SIZES, hp={"lam": LAM}, participation=0.67, **PLAIN)
    gate = federation.server.state["gate"].weights
    w0 = torch.tensor(initial(federation))
    body, head, heads = w0[:12], w0[12:], [w0[12:]] * 3
    for t in range(3):
        federation.advance()
        sent = {}
        for i in federation.server.selected:
            w, g, context = torch.cat([body, heads[i]]), gate, context_of(heads[i])
            for bx, by in local_batches(SIZES, t, i):
                x, y = torch.tensor(bx), torch.tensor(by)
                v, h = w.clone().requires_grad_(), g.clone().requires_grad_()
                fit = (y * torch.log_softmax(gated(v, h, head, context, x), 1)).sum(1).mean()
                loss = LAM * mmd(features(v, x), features(torch.cat([body, w0[12:]]), x)) - fit
                a, b = torch.autograd.grad(loss, (v, h))
                w, g = w - LR * a, g - LR * b
            heads[i] = w[12:]
            sent[i] = (w[:12], g, (w[12:] + head) / 2)
        assert len(sent) == 2
        whole = sum(SIZES[i] for i in sent)
        body, gate, head = (
            sum(SIZES[i] / whole * one[k] for i, one in sent.items())  # type: ignore[misc]
            for k in range(3)
        )
    data, losses = toy_data(), []
    for i, found in personal(federation).items():
        context, at = context_of(heads[i]), federation.device_data.partition.test[i]
        near(found, torch.cat([body, heads[i], gate, head, context]).numpy())
        rows = gated(torch.cat([body, heads[i]]), gate, head, context, torch.tensor(data.x[at]).double())
        losses.append(float(functional.cross_entropy(rows, torch.tensor(data.y[at]))))
    scores = federation.evaluate().metrics
    row = next(r for r in scores if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-10)


@pytest.mark.long
def test_a_gate_stuck_at_the_own_head_makes_fedper() -> None:
    """It gives everything to that head, whatever it sees; a gate that learns does not."""
    stuck, free, fedper = toy("fedcp", hp={"lam": 0.0}), toy("fedcp", hp={"lam": 0.0}), toy("fedper")
    gate = stuck.server.state["gate"]
    scores = torch.tensor([60.0] * D + [0.0] * D).double()
    stuck.server.state["gate"] = gate.with_weights(torch.cat([torch.zeros(30).double(), scores]))
    for federation in (stuck, free, fedper):
        run(federation, 3)
    for i, w in personal(fedper).items():
        same, other = (federation.evaluator.personal(3)[i].part("w").weights for federation in (stuck, free))
        torch.testing.assert_close(same, w, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(other, w)
