"""Small pictures for attacks."""

import numpy as np

from bench.data import Dataset


def images(side: int = 3, samples: int = 8) -> Dataset:
    x = np.arange(samples * side * side, dtype=np.uint8).reshape(samples, 1, side, side)
    return Dataset("images", x, np.arange(samples) % 3, samples, 3, (0.5,), (0.25,), "")
