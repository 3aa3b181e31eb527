"""APPLE against its formulas in plain torch."""

import math

import numpy as np
import torch

from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import plain
from tests.methods.reference import PLAIN, initial, local_batches, near

SIZES = [9, 5, 7]
HP = {"mu": 0.4, "fade": 3, "p_lr": 0.05}


def test_follows_the_formulas() -> None:
    """Three clients, five rounds; the penalty has faded after three."""
    federation = toy("apple", sizes=SIZES, hp=HP, **PLAIN)
    run(federation, 5)
    p0 = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    cores, shares = [torch.tensor(initial(federation))] * 3, [p0] * 3
    for t in range(5):
        fading = (1 + math.cos(math.pi * t / 3)) / 2 if t < 3 else 0
        new = []
        for i in range(3):
            own, p = cores[i], shares[i]
            for x, target in local_batches(SIZES, t, i):
                v, q = own.clone().requires_grad_(), p.clone().requires_grad_()
                mixed = torch.stack([q[j] * (v if j == i else cores[j]) for j in range(3)]).sum(0)
                loss = plain(mixed, torch.tensor(x), torch.tensor(target)) + fading * 0.2 * ((q - p0) ** 2).sum()
                a, b = torch.autograd.grad(loss, (v, q))
                own, p = own - 0.1 * a, p - 0.05 * b
            new.append(own)
            shares[i] = p
        cores = new
    for i, w in personal(federation).items():
        near(w, np.asarray(sum(shares[i][j] * cores[j] for j in range(3))))
