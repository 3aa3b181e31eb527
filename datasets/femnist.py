"""`femnist`: handwritten characters with their writers, in the files that LEAF writes (Caldas et al. 2018)."""

from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.leaf import read_leaf

_SIDE = 28
_CLASSES = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]


@DATASETS.register("femnist")
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """FEMNIST as prepared by LEAF: `[n, 1, 28, 28]` uint8, 62 classes; groups are the writers.

    Args:
        data_root: holds `femnist/data/train` and `femnist/data/test` with LEAF's JSON files.
        download: not used; LEAF makes the files.
        mean, std: in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: files are missing, or not in LEAF's format.
    """
    x, y, writers, n_train = read_leaf("femnist", data_root, _images)
    return assemble("femnist", x, y, n_train, mean=mean, std=std, classes=_CLASSES, groups=writers)


def _images(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Images `[n, 1, 28, 28]` uint8 from 784 values per image, 0 (ink) to 1 (paper), and labels from 0 to 61."""
    pixels = np.asarray(x, np.float64).reshape(-1, 1, _SIDE, _SIDE)
    labels = np.asarray(y, np.int64)
    if pixels.shape[:1] != labels.shape or not 0 <= pixels.min() <= pixels.max() <= 1:
        raise ValueError(f"{len(pixels)} images, {len(labels)} labels, or a value outside 0 .. 1")
    return np.rint(255 * pixels).astype(np.uint8), labels
