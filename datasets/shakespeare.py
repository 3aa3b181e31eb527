"""`shakespeare`: the next character in lines of the plays, in the files that LEAF writes (Caldas et al. 2018).

Each role of a play is a user. A sample is 80 characters of its lines, and the label the next character.
"""

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np

from bench.data import Array, Dataset
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.leaf import read_leaf

LENGTH = 80
ALPHABET = f"\n !\"&'(),-.{digits}:;>?{ascii_uppercase}[]{ascii_lowercase}}}"
"""LEAF's 80 characters in its order; a character's number is its place."""

OVERLAP = (
    "shakespeare: neighbouring samples share 79 of their 80 characters, so tests or validation that are cut from a "
    "role's own samples (`shares`, `natural_leaf`, `validation_share`) repeat what is trained on; LEAF's own test part "
    "does not, and the protocol `paper` cuts no validation"
)

_NUMBER = np.full(128, -1, np.int32)
_NUMBER[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


@DATASETS.register("shakespeare")
def load(*, data_root: Path, download: bool) -> Dataset:
    """Shakespeare as prepared by LEAF: tokens `[n, 80]`, 80 classes; groups are the roles.

    Args:
        data_root: holds `shakespeare/data/train` and `shakespeare/data/test` with LEAF's JSON files.
        download: not used; LEAF makes the files.

    Raises:
        UserError: files are missing, not in LEAF's format, or have a character that is not in its alphabet.
    """
    x, y, roles, n_train = read_leaf("shakespeare", data_root, _texts)
    return assemble(
        "shakespeare", x, y, n_train, mean=None, std=None, classes=[*ALPHABET], groups=roles, vocabulary=len(ALPHABET),
        notes=[OVERLAP],
    )  # fmt: skip


def _texts(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    if len(x) != len(y) or {len(text) for text in x} - {LENGTH} or {len(text) for text in y} - {1}:
        raise ValueError(f"{len(x)} texts and {len(y)} characters, or a text that has not {LENGTH} characters")
    return _numbers("".join(x)).reshape(-1, LENGTH), _numbers("".join(y))


def _numbers(text: str) -> Array:
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    numbers: Array = np.where(codes < len(_NUMBER), _NUMBER[np.minimum(codes, len(_NUMBER) - 1)], -1)
    if len(numbers) and numbers.min() < 0:
        raise ValueError(f"{text[int(numbers.argmin())]!r} is none of LEAF's {len(ALPHABET)} characters")
    return numbers
