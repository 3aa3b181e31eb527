"""`celeba`: faces of celebrities, smiling or not (Liu et al. 2015, arXiv:1411.7766), in the files that LEAF writes."""

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.arrays import Array
from datasets.assemble import assemble
from datasets.leaf import read_leaf
from datasets.resized import resized

_PICTURES = Path("data", "raw", "img_align_celeba")


@DATASETS.register("celeba")
def load(
    *, data_root: Path, download: bool, size: PositiveInt = 84, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """CelebA by LEAF: `[n, 3, size, size]` uint8, smiling or not; groups are the people.

    The first use resizes every picture into `DATA_ROOT/celeba-SIZE.images.npy`.

    Args:
        data_root: holds `celeba/data/train` and `celeba/data/test` with LEAF's JSON files, and the pictures in
            `celeba/data/raw/img_align_celeba`.
        download: not used; LEAF makes the files.
        size: height and width in pixels; LEAF's 84.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: files are missing, or not in LEAF's format.
    """
    names, y, people, n_train = read_leaf("celeba", data_root, _names)
    paths = [data_root / "celeba" / _PICTURES / name for name in names.tolist()]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"celeba: {missing} is missing; put CelebA's aligned pictures there")
    x, known = resized("celeba", paths, size, data_root / f"celeba-{size}.images.npy", n_train)
    return assemble(
        "celeba", x, y, n_train, mean=mean or known["mean"], std=std or known["std"], classes=["serious", "smiling"],
        checksum=known["checksum"], groups=people,
    )  # fmt: skip


def _names(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    if len(x) != len(y) or not {int(label) for label in y} <= {0, 1}:
        raise ValueError(f"{len(x)} pictures, {len(y)} labels, or a label that is neither 0 nor 1")
    return np.array([str(name) for name in x], dtype=object), np.array([int(label) for label in y], np.int64)
