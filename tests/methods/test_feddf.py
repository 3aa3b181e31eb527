"""FedDF against Algorithm 1, and its running statistics."""

from typing import Any

import numpy as np
import torch

from bench.engine.device_data import SERVER
from bench.method import Feed
from tests.engine.problems import generic, run, toy
from tests.methods.reference import (
    PLAIN,
    PUBLIC,
    PUBLIC_X,
    Array,
    batches,
    descend,
    gradient,
    initial,
    local_batches,
    logits,
    near,
    softmax,
)

SIZES = [9, 5, 7]
STEPS = 8  # two passes over twelve public samples in batches of five, and two batches of a third
HYPER = {"distil_steps": STEPS, "distil_batch": 5, "distil_lr": 0.05}


def distilled(w: Array, target: Array, t: int) -> Array:
    """Adam with a cosine from 0.05 to 0; the gradient of the divergence is that of the cross-entropy."""
    first, second = np.zeros(21), np.zeros(21)
    for k, p in enumerate(batches(Feed("public", 5), len(PUBLIC_X), len(PUBLIC_X), STEPS, t, SERVER)):
        g = gradient(w, PUBLIC_X[p], target[p])
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        lr = 0.05 * (1 + np.cos(np.pi * k / STEPS)) / 2
        w = w - lr * (first / (1 - 0.9 ** (k + 1))) / (np.sqrt(second / (1 - 0.999 ** (k + 1))) + 1e-8)
    return w


def test_follows_algorithm_1() -> None:
    """Two of three clients of unequal size in each of two rounds; teachers are those that took part."""
    federation = toy("feddf", sizes=SIZES, public=PUBLIC, hp=HYPER, participation=0.67, **PLAIN)
    w = initial(federation)
    for t in range(2):
        run(federation, 1)
        chosen = federation.server.selected
        sent = [descend(w, local_batches(SIZES, t, i)) for i in chosen]
        start = np.average(sent, axis=0, weights=[SIZES[i] for i in chosen])
        w = distilled(start, softmax(np.mean([logits(one, PUBLIC_X) for one in sent], axis=0)), t)
        near(generic(federation), w)
        assert np.abs(w - start).max() > 0.01
    assert len(chosen) == 2


def test_students_running_statistics_move_with_public_data() -> None:
    """One step on all public samples, from the mean of the uploaded statistics; teachers keep theirs."""
    settings: dict[str, Any] = {"sizes": SIZES, "model": "test_norm", "public": PUBLIC}
    feddf, fedavg = toy("feddf", hp={"distil_steps": 1}, **settings), toy("fedavg", **settings)
    run(feddf, 1)
    run(fedavg, 1)
    start, found = (federation.server.state["model"].tensors() for federation in (fedavg, feddf))
    inner = torch.from_numpy(PUBLIC_X) @ start["inner.weight"].T + start["inner.bias"]
    expected = 0.9 * start["norm.running_mean"] + 0.1 * inner.mean(0)
    torch.testing.assert_close(found["norm.running_mean"], expected)
