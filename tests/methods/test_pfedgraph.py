"""pFedGraph: its graph against a search of all supports, its rounds in plain torch, FedAvg and Local."""

import itertools

import numpy as np
import torch

from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import descend_on, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, near

SIZES = [9, 5, 7]
ALPHA, LAM = 0.4, 0.3


def shares_of(cosine: Array, p: Array, alpha: float) -> Array:
    """The minimum of alpha |a - p|^2 - a cos over distributions: the best of the optima on all supports."""
    n, best, found = len(p), np.inf, p
    target = p + cosine / (2 * alpha)
    for size in range(1, n + 1):
        for support in itertools.combinations(range(n), size):
            a, inside = np.zeros(n), list(support)
            a[inside] = target[inside] - (target[inside].sum() - 1) / size
            value = alpha * ((a - p) ** 2).sum() - a @ cosine
            if (a >= 0).all() and value < best:
                best, found = value, a
    return found


def test_follows_the_algorithm() -> None:
    """Three clients, four rounds; the pull begins with the second one."""
    federation = toy("pfedgraph", sizes=SIZES, hp={"alpha": ALPHA, "lam": LAM}, **PLAIN)
    run(federation, 4)
    w0, p = initial(federation), np.array(SIZES) / sum(SIZES)
    starts, models, empty = [w0] * 3, [w0] * 3, 0
    for t in range(4):
        for i in range(3):
            received, pull = torch.tensor(starts[i]), LAM if t else 0.0

            def objective(
                w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor = received, lam: float = pull
            ) -> torch.Tensor:
                return plain(w, x, y) - lam * torch.cosine_similarity(w, c, dim=0)

            models[i] = descend_on(starts[i], local_batches(SIZES, t, i), objective)
        moved = [(w - w0) / np.linalg.norm(w - w0) for w in models]
        for i in range(3):
            a = shares_of(np.array([moved[i] @ m for m in moved]), p, ALPHA)
            empty += int((a == 0).sum())
            starts[i] = sum(share * w for share, w in zip(a, models, strict=True))
    for i, w in personal(federation).items():
        near(w, models[i])
        near(federation.clients.down(i)["model"].weights, starts[i])
    assert 0 < empty < 3 * 4 * 2  # the constraint a >= 0 matters in some rows and not in all


def test_without_pull_its_limits_are_fedavg_and_local() -> None:
    """Kept to FedAvg's shares, clients start where FedAvg's do; let alone, from their own models; with BatchNorm."""
    for alpha, name in ((1e12, "fedavg"), (1e-12, "local")):
        federation = toy("pfedgraph", hp={"alpha": alpha, "lam": 0.0}, model="test_norm", sizes=SIZES)
        other = toy(name, model="test_norm", sizes=SIZES)
        run(federation, 3)
        run(other, 3)
        for i in range(3):
            expected = other.server.state["model"] if name == "fedavg" else other.clients[i].state["personal"]
            received = federation.clients.down(i)["model"]
            torch.testing.assert_close(received.weights, expected.weights, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(received.buffers, expected.buffers, rtol=1e-9, atol=1e-9)


def test_clients_that_were_not_heard_keep_what_they_had() -> None:
    federation = toy("pfedgraph", sizes=[9, 5, 7, 4], participation=0.5)
    run(federation, 1)
    graph = federation.server.state["graph"]
    torch.testing.assert_close(graph.sum(1), torch.ones(4, dtype=graph.dtype))
    heard = sorted(federation.server.state["mixed"])
    assert len(heard) == 2
    for i in range(4):
        received = federation.clients.down(i)["model"].weights
        assert torch.equal(received, federation.server.initial_model().weights) == (i not in heard)
        assert (graph[i, i] == 1) == (i not in heard)
