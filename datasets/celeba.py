"""`celeba`: faces of celebrities, smiling or not (Liu et al. 2015, arXiv:1411.7766), in the files that LEAF writes."""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.leaf import read_leaf, two_classes
from datasets.resized import photographs

_PICTURES = Path("data", "raw", "img_align_celeba")


@DATASETS.register("celeba")
def load(
    *, data_root: Path, download: bool, size: PositiveInt = 84, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """CelebA as prepared by LEAF: `[n, 3, size, size]` uint8, smiling or not; groups are the people.

    The first use resizes every picture into `DATA_ROOT/celeba-SIZE.images.npy`.

    Args:
        data_root: holds `celeba/data/train` and `celeba/data/test` with LEAF's JSON files, and the pictures in
            `celeba/data/raw/img_align_celeba`.
        download: not used; LEAF makes the files.
        size: height and width in pixels; LEAF uses 84.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: files are missing, or not in LEAF's format.
    """
    names, y, people, n_train = read_leaf("celeba", data_root, _names)
    paths = [data_root / "celeba" / _PICTURES / name for name in names.tolist()]
    cache, classes = data_root / f"celeba-{size}.images.npy", ["serious", "smiling"]
    advice = "put CelebA's aligned pictures there"
    return photographs("celeba", paths, y, n_train, cache, size, classes, mean, std, advice, groups=people)


def _names(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    return np.array([str(name) for name in x], dtype=object), two_classes(x, y)
