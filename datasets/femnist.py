"""`femnist`: handwritten characters with their writers, in the files that LEAF writes (Caldas et al. 2018).

LEAF's `preprocess.sh` for FEMNIST makes `data/train/*.json` and `data/test/*.json`, each with `users` and, by user,
784 values from 0 (ink) to 1 (paper) per image and a label from 0 to 61.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.arrays import Array
from datasets.assemble import assemble

_SIDE = 28
_CLASSES = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]


@DATASETS.register("femnist")
def load(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """FEMNIST by LEAF: `[n, 1, 28, 28]` uint8, 62 classes; groups are the writers.

    Args:
        data_root: holds `femnist/data/train` and `femnist/data/test` with LEAF's JSON files.
        download: not used; LEAF makes the files.
        mean, std: in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: files are missing, or not in LEAF's format.
    """
    train, test = (_part(data_root / "femnist" / "data" / part) for part in ("train", "test"))
    x, y, writers = (np.concatenate(both) for both in zip(train, test, strict=True))
    return assemble("femnist", x, y, len(train[1]), mean=mean, std=std, classes=_CLASSES, groups=writers)


def _part(folder: Path) -> tuple[Array, Array, Array]:
    """Images, labels and writers of all files of a folder, in the order of names."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"femnist: {folder} has no JSON files; make them with LEAF, and set `--data-root`")
    parts = [part for file in files for part in _file(file)]
    x, y, writers = (np.concatenate(lists) for lists in zip(*parts, strict=True))
    return x, y, writers


def _file(file: Path) -> list[tuple[Array, Array, Array]]:
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        found = []
        for user in content["users"]:
            own = content["user_data"][user]
            pixels = np.asarray(own["x"], np.float64).reshape(-1, 1, _SIDE, _SIDE)
            x = np.rint(255 * pixels).astype(np.uint8)
            y = np.asarray(own["y"], np.int64)
            if x.shape[:1] != y.shape or not 0 <= pixels.min() <= pixels.max() <= 1:
                raise ValueError(f"user {user}: {len(x)} images, {len(y)} labels, or a value outside 0 .. 1")
            found.append((x, y, np.full(len(y), str(user))))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"femnist: {file} is not in LEAF's format ({type(error).__name__}: {error})") from None
    return found
