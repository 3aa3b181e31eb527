"""Per-FedAvg against its formulas."""

import itertools

import numpy as np
import pytest

from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, descend, gradient, initial, local_batches, near

SIZES = [9, 5]
ALPHA, DELTA = 0.2, 0.05


def meta_gradient(w: Array, variant: str, t: int, i: int) -> Array:
    """One client's round, straight from the algorithm box."""
    streams = [local_batches(SIZES, t, i, stream=stream) for stream in range(3)]
    for outer, inner, curvature in zip(*streams, strict=True):
        g = gradient(w - ALPHA * gradient(w, *inner), *outer)
        if variant == "hf":
            product = (gradient(w + DELTA * g, *curvature) - gradient(w - DELTA * g, *curvature)) / (2 * DELTA)
            g = g - ALPHA * product
        w = w - LR * g
    return w


@pytest.mark.parametrize("personal_steps", [1, 2, None])
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_follows_the_formulas(variant: str, personal_steps: int | None) -> None:
    """Two clients, two rounds; the mean is uniform; the personalized model is some steps (or an epoch) further."""
    hyper = {"variant": variant, "alpha": ALPHA, "delta": DELTA, "personal_steps": personal_steps}
    federation = toy("perfedavg", sizes=SIZES, hp=hyper, **PLAIN)
    run(federation, 2)
    w = initial(federation)
    for t in range(2):
        w = np.mean([meta_gradient(w, variant, t, i) for i in range(2)], axis=0)
    near(generic(federation), w)
    for i, found in personal(federation).items():
        near(found, descend(w, itertools.islice(local_batches(SIZES, 2, i), personal_steps), lr=ALPHA))
