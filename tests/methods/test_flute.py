"""FLUTE against plain torch, and the simplices that its term is about."""

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.flute import from_simplex
from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import Objective, descend_on, features, plain
from tests.methods.reference import LR, PLAIN, Array, initial, local_batches, local_data, near

SIZES = [9, 2]
A, B, D, EPOCHS, SERVER_LR = 0.4, 0.03, 0.02, 2, 0.5


def distance(head: Tensor, has: list[bool]) -> Tensor:
    """Entry by entry, in cosines' terms: the Gram matrix of norm 1 against that of a simplex of three classes."""
    whole = torch.sqrt(sum(((p @ q) ** 2 for p in head for q in head), torch.zeros((), dtype=head.dtype)))
    total = torch.zeros((), dtype=head.dtype)
    for i in range(3):
        for j in range(3):
            wanted = (2 / 3 if i == j else -1 / 3) / 2**0.5 if has[i] and has[j] else 0.0
            total = total + (head[i] @ head[j] / whole - wanted) ** 2
    return total.sqrt()


def objective(has: list[bool], *, whole: bool, start: Array) -> Objective:
    def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        body = v[:12] if whole else torch.tensor(start[:12])
        w = torch.cat([body, v[12:]])
        head = w[12:].view(3, 3)
        extra = D * (features(w, x) ** 2).sum() if whole else 0.0
        return plain(w, x, y) + A * distance(head, has) + B * (head**2).sum() + extra

    return loss


def test_follows_the_algorithm() -> None:
    """Two clients, of which one lacks a class; three rounds with the server's step in each."""
    hp = {"simplex": A, "head_decay": B, "feature_decay": D, "head_epochs": EPOCHS, "server_lr": SERVER_LR}
    federation = toy("flute", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 3)
    model = initial(federation)
    body, heads = model[:12], [model[12:]] * 2
    has = [[bool(local_data(SIZES, i)[1][:, c].any()) for c in range(3)] for i in range(2)]
    assert not all(has[1])
    for t in range(3):
        sent, bodies = [], []
        for i in range(2):
            w = np.concatenate([body, heads[i]])
            w = descend_on(w, local_batches(SIZES, t, i, EPOCHS), objective(has[i], whole=False, start=w))
            w = descend_on(w, local_batches(SIZES, t, i), objective(has[i], whole=True, start=w))
            bodies.append(w[:12])
            sent.append(w[12:])
        body = (9 * bodies[0] + 2 * bodies[1]) / 11
        for i in range(2):
            leaf = torch.tensor(sent[i], requires_grad=True)
            (distance(leaf.view(3, 3), has[i]) / 2).backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            heads[i] = sent[i] - SERVER_LR * leaf.grad.numpy()
    for i, w in personal(federation).items():
        near(w, np.concatenate([body, heads[i]]))
    assert LR != SERVER_LR


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_a_simplex_has_no_distance_to_one(scale: float) -> None:
    """However it is turned and scaled; one row more or less of it has."""
    rows = torch.eye(4, dtype=torch.float64) - 0.25
    turn = torch.linalg.qr(torch.randn(4, 7, generator=torch.Generator().manual_seed(0)).double().T).Q.T
    head, ones = scale * rows @ turn, torch.ones(4, dtype=torch.float64)
    assert float(from_simplex(head, ones)) < 1e-12
    assert float(from_simplex(head, ones.index_fill(0, torch.tensor([1]), 0))) > 0.1
    torch.testing.assert_close(from_simplex(head[[0, 0, 1, 2]], ones), from_simplex(3 * head[[0, 0, 1, 2]], ones))
