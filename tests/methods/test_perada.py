"""PerAda against numpy, where the adapter is the head."""

import numpy as np
import torch

from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5, 7]


def test_a_head_as_the_adapter_follows_the_algorithm() -> None:
    """Three clients, four rounds, without distillation: all of the first 12 weights stay."""
    hp = {"adapter": ["head"], "lam": 0.6, "distil_steps": 0}
    federation = toy("perada", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 4)
    w, own, trains = initial(federation), [initial(federation)] * 3, np.arange(21) >= 12
    for t in range(4):
        sent = []
        for i in range(3):
            local, v = w, own[i]
            for x, y in local_batches(SIZES, t, i):
                local = local - LR * trains * gradient(local, x, y)
                v = v - LR * trains * (gradient(v, x, y) + 0.6 * (v - w))
            sent.append(local)
            own[i] = v
        w = np.average(sent, axis=0, weights=SIZES)
    near(generic(federation), w)
    for i, found in personal(federation).items():
        near(found, own[i])


def test_the_server_trains_the_adapter_alone() -> None:
    """Distillation leaves the body as it started, and moves the head."""
    models = []
    for steps in (0, 10):
        federation = toy("perada", hp={"adapter": ["head"], "distil_steps": steps, "distil_lr": 0.01})
        run(federation, 2)
        models.append(generic(federation))
    start = federation.server.initial_model().weights
    assert torch.equal(models[0][:12], start[:12])
    assert torch.equal(models[1][:12], start[:12])
    assert not torch.allclose(models[0][12:], models[1][12:], atol=1e-4)
