"""Reading the files that LEAF writes (Caldas et al. 2018): `data/{train,test}/*.json`, each with users and their
samples.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Array
from bench.errors import UserError

Read = Callable[[list[Any], list[Any]], tuple[Array, Array]]  # makes arrays of a user's `x` and `y`, or a ValueError


def read_leaf(name: str, data_root: Path, read: Read) -> tuple[Array, Array, Array, int]:
    """Read inputs, labels and users of all samples, the test part last, and the size of the training part.

    Files are read in the order of their names. A user may have samples in one part only, or in none.

    Args:
        name: name of the data set and of its folder below `data_root`.
        data_root: folder that holds the data sets.
        read: turns one user's samples into arrays; raises ValueError if they are malformed.

    Raises:
        UserError: files are missing, or not in LEAF's format, or there are no samples in a part.
    """
    train, test = (_part(name, data_root / name / "data" / part, read) for part in ("train", "test"))
    x, y, users = (np.concatenate(both) for both in zip(train, test, strict=True))
    return x, y, users, len(train[1])


def _part(name: str, folder: Path, read: Read) -> tuple[Array, Array, Array]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{name}: {folder} has no JSON files; make them with LEAF, and set `--data-root`")
    parts = [part for file in files for part in _file(name, file, read)]
    if not parts:
        raise UserError(f"{name}: no user has samples in {folder}; make the files again with LEAF")
    x, y, users = (np.concatenate(lists) for lists in zip(*parts, strict=True))
    return x, y, users


def _file(name: str, file: Path, read: Read) -> list[tuple[Array, Array, Array]]:
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        parts = []
        for user in content["users"]:
            samples = content["user_data"][user]
            if not samples["x"] and not samples["y"]:  # as of a user with too few samples for both parts
                continue
            try:
                x, y = read(samples["x"], samples["y"])
            except ValueError as error:
                raise ValueError(f"user {user}: {error}") from None
            parts.append((x, y, np.full(len(y), str(user))))
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UserError(f"{name}: {file} is not in LEAF's format ({type(error).__name__}: {error})") from None
    return parts


def two_classes(x: list[Any], y: list[Any]) -> Array:
    """Labels of a user's samples, each 0 or 1.

    Raises:
        ValueError: a label is neither 0 nor 1, or there is not one for each sample.
    """
    labels = np.array([int(label) for label in y], np.int64)
    if len(x) != len(labels) or not set(labels.tolist()) <= {0, 1}:
        raise ValueError(f"{len(x)} samples, {len(y)} labels, or a label that is neither 0 nor 1")
    return labels
