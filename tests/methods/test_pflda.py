"""PFL-DA against its two phases in plain numpy, and where it is LG-FedAvg."""

import numpy as np
import torch

from tests.engine.problems import personal, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]
LAM = 0.7


def test_follows_the_two_phases() -> None:
    """Two clients, three rounds: own heads, then bodies with the shared head, whose mean all get."""
    federation = toy("pflda", sizes=SIZES, hp={"lam": LAM}, **PLAIN)
    run(federation, 3)
    start = initial(federation)
    bodies, heads, shared = [start[:12]] * 2, [start[12:]] * 2, start[12:]
    for t in range(3):
        sent = []
        for i in range(2):
            for x, y in local_batches(SIZES, t, i):
                slope = gradient(np.concatenate([bodies[i], heads[i]]), x, y)[12:]
                heads[i] = heads[i] - LR * (slope + LAM * (heads[i] - shared))
            w = np.concatenate([bodies[i], shared])
            for x, y in local_batches(SIZES, t, i):
                w = w - LR * gradient(w, x, y)
            bodies[i] = w[:12]
            sent.append(w[12:])
        shared = (9 * sent[0] + 5 * sent[1]) / 14
    near(federation.server.state["head"].weights, shared)
    for i, w in personal(federation).items():
        near(w, np.concatenate([bodies[i], heads[i]]))


def test_bodies_and_shared_head_are_those_of_lgfedavg() -> None:
    """To the byte, with BatchNorm, whatever own heads do."""
    federation, other = toy("pflda", hp={"lam": 5.0}, model="test_norm"), toy("lgfedavg", model="test_norm")
    run(federation, 3)
    run(other, 3)
    assert torch.equal(federation.server.state["head"].weights, other.server.state["head"].weights)
    for i in federation.clients.ids:
        body, expected = (one.clients[i].state["body"] for one in (federation, other))
        assert torch.equal(body.weights, expected.weights)
        assert torch.equal(body.buffers, expected.buffers)
