"""GPFL against its formulas, sample by sample."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import features
from tests.methods.reference import DATA, LR, PLAIN, initial, local_batches, local_data

SIZES = [9, 5]
HP = {"lam": 0.3, "mu": 0.05}


def block(weights: Tensor, v: Tensor) -> Tensor:
    """A linear layer from 3 to 3, ReLU, and a normalisation of 3."""
    hidden = torch.relu(weights[:9].view(3, 3) @ v + weights[9:12])
    return functional.layer_norm(hidden, (3,), weights[12:15], weights[15:18])


def valved(z: Tensor, gamma: Tensor, beta: Tensor, v: Tensor) -> Tensor:
    return torch.relu((block(gamma, v) + 1) * z + block(beta, v))


def objective(parts: list[Tensor], x: Tensor, y: Tensor, received: Tensor, shares: Tensor) -> Tensor:
    w, embeddings, gamma, beta = parts
    own, generic = sum(s * e for s, e in zip(shares, received, strict=True)), sum(received) / len(received)
    total = torch.zeros(())
    for row, target in zip(x, y, strict=True):
        c, z = int(target.argmax()), features(w, row[None])[0]
        f = valved(z, gamma, beta, generic)  # type: ignore[arg-type]
        logits = w[12:].view(3, 3) @ valved(z, gamma, beta, own)  # type: ignore[arg-type]
        cosines = torch.stack([f @ e / (f.norm() * e.norm()) for e in embeddings])
        total = total - torch.log_softmax(logits, 0)[c] - torch.log_softmax(cosines, 0)[c]
        total = total + HP["lam"] * (f - received[c]).norm()
    norms = (embeddings**2).sum() + (gamma**2).sum() + (beta**2).sum()
    return total / len(x) + HP["mu"] / 2 * norms


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; then every client is tested by its route."""
    federation = toy("gpfl", sizes=SIZES, hp=HP, **PLAIN)
    state = federation.server.state
    shared = [state["embeddings"], state["gamma"].weights, state["beta"].weights]
    scores = run(federation, 3)
    w0 = torch.tensor(initial(federation))
    body, heads = w0[:12], [w0[12:]] * 2
    shares = [torch.tensor(local_data(SIZES, i)[1]).mean(0) for i in range(2)]
    for t in range(3):
        sent = []
        for i in range(2):
            parts = [torch.cat([body, heads[i]]), *shared]
            for x, y in local_batches(SIZES, t, i):
                leaves = [p.clone().requires_grad_() for p in parts]
                loss = objective(leaves, torch.tensor(x), torch.tensor(y), shared[0], shares[i])
                gradients = torch.autograd.grad(loss, leaves)
                parts = [p - LR * g for p, g in zip(parts, gradients, strict=True)]
            heads[i] = parts[0][12:]
            sent.append([parts[0][:12], *parts[1:]])
        body, *shared = [sum(n * one[k] for n, one in zip(SIZES, sent, strict=True)) / 14 for k in range(4)]  # type: ignore[misc]
    losses = []
    for i, w in personal(federation).items():
        own, at = shares[i] @ shared[0], federation.device_data.partition.test[i]
        # Normalising 3 numbers loses digits.
        torch.testing.assert_close(w, torch.cat([body, heads[i], *shared[1:], own]), rtol=1e-8, atol=1e-10)
        z = features(body, torch.tensor(DATA.x[at]).double())
        rows = [heads[i].view(3, 3) @ valved(one, shared[1], shared[2], own) for one in z]
        losses.append(float(functional.cross_entropy(torch.stack(rows), torch.tensor(DATA.y[at]))))
    row = next(r for r in scores.metrics if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-8)
