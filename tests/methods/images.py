"""Small pictures for models of modules."""

import numpy as np

from bench.data import Dataset
from bench.rng import generator

SIZES = [8, 12]
"""Training samples of two clients."""


def images() -> Dataset:
    """Noise of 16 x 16 pixels, three classes; the last ten are the test part."""
    rng = generator("tests", "modules")
    n = sum(SIZES) + 10
    x = rng.normal(size=(n, 1, 16, 16)).astype(np.float32)
    return Dataset("noise", x, rng.integers(0, 3, n), sum(SIZES), 3, (0.0,), (1.0,), "noise")
