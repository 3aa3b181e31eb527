"""FedPHP against its formulas in plain torch, where it is FedAvg, and the discrepancy by hand."""

import math

import pytest
import torch
from torch import Tensor

from methods.fedphp import discrepancy
from tests.engine.problems import generic, personal, run, toy
from tests.methods.by_autograd import Objective, descend_on, features, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, near

SIZES = [9, 5]


def mmd_by_hand(a: Tensor, b: Tensor) -> Tensor:
    """Pair by pair."""

    def kernel(p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([torch.exp(-((p - q) ** 2).sum() / (2 * s)) for s in (10, 15, 20, 50)]).sum()

    n, total = len(a), torch.zeros((), dtype=a.dtype)
    for i in range(n):
        for j in range(n):
            total = total + kernel(a[i], a[j]) + kernel(b[i], b[j]) - 2 * kernel(a[i], b[j])
    return total / n**2


def test_follows_the_formulas() -> None:
    """Two clients, four rounds; mu rises over two."""

    def objective(old: Array) -> Objective:
        def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return 0.4 * plain(v, x, y) + 0.6 * mmd_by_hand(features(v, x), features(torch.tensor(old), x))

        return loss

    federation = toy("fedphp", sizes=SIZES, hp={"lam": 0.6, "mu": 0.8, "rounds": 2}, **PLAIN)
    run(federation, 4)
    model = initial(federation)
    private = [model, model]
    for t in range(4):
        keep = 0.8 * min(1, t / 2)
        sent = [descend_on(model, local_batches(SIZES, t, i), objective(private[i])) for i in range(2)]
        private = [(1 - keep) * w + keep * old for w, old in zip(sent, private, strict=True)]
        model = (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), model)
    for i, w in personal(federation).items():
        near(w, private[i])


def test_private_models_are_what_clients_sent_without_memory() -> None:
    """mu = 0, one client: the private model is the generic one."""
    for mu in (0.0, 0.5):
        federation = toy("fedphp", sizes=[9], hp={"mu": mu, "rounds": 1}, model="test_norm")
        run(federation, 3)
        assert torch.allclose(personal(federation)[0], generic(federation), rtol=1e-12) == (mu == 0)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_discrepancy_by_hand(shift: float) -> None:
    """Padding does not count; equal clouds have none."""
    a = torch.tensor([[0.0, 1], [2, 3], [1, 1]], dtype=torch.float64)
    b = a + shift
    share = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    found = discrepancy(a, b, share)
    torch.testing.assert_close(found, mmd_by_hand(a[:2], b[:2]))
    assert math.isclose(float(found), 0.0, abs_tol=1e-12) == (shift == 0)
