"""`femnist`, `celeba`, `sent140` and `shakespeare`, from the files that LEAF writes (Caldas et al. 2018):
`data/{train,test}/*.json`, each with users and their samples.
"""

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble
from datasets.published import reading
from datasets.resized import photographs
from datasets.words import FIRST, numbered, words_of

Read = Callable[[list[Any], list[Any]], tuple[Array, Array]]  # makes arrays of a user's `x` and `y`, or a ValueError

_SIDE = 28
_ADVICE = "make the files with LEAF, and set `--data-root`"
_CHARACTERS = [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]
LENGTH = 80
ALPHABET = f"\n !\"&'(),-.{digits}:;>?{ascii_uppercase}[]{ascii_lowercase}}}"
"""LEAF's 80 characters of Shakespeare in its order; a character's number is its place."""
_NUMBER = np.full(128, -1, np.int32)
_NUMBER[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
_OVERLAP = (
    "shakespeare: neighbouring samples share 79 of their 80 characters, so tests or validation that are cut from a "
    "role's own samples (`shares`, `natural_leaf`, `validation_share`) repeat what is trained on; LEAF's own test part "
    "does not, and the protocol `paper` cuts no validation"
)


@DATASETS.register("femnist")
def femnist(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """Handwritten characters with their writers: `[n, 1, 28, 28]` uint8, 62 classes; groups are the writers.

    Args:
        data_root: holds `femnist/data/train` and `femnist/data/test` with LEAF's JSON files.
    """
    x, y, writers, n_train = _read("femnist", data_root, _written)
    return assemble("femnist", x, y, n_train, mean=mean, std=std, classes=_CHARACTERS, groups=writers)


def _written(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Images `[n, 1, 28, 28]` uint8 from 784 values per image, 0 (ink) to 1 (paper), and labels from 0 to 61."""
    pixels = np.asarray(x, np.float64).reshape(-1, 1, _SIDE, _SIDE)
    labels = np.asarray(y, np.int64)
    if pixels.shape[:1] != labels.shape or not 0 <= pixels.min() <= pixels.max() <= 1:
        raise ValueError(f"{len(pixels)} images, {len(labels)} labels, or a value outside 0 .. 1")
    return np.rint(255 * pixels).astype(np.uint8), labels


@DATASETS.register("celeba")
def celeba(
    *, data_root: Path, download: bool, size: PositiveInt = 84, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """Faces of celebrities, smiling or not (Liu et al. 2015): `[n, 3, size, size]` uint8; groups are the people.

    The first use resizes every picture into `DATA_ROOT/celeba-SIZE.images.npy`.

    Args:
        data_root: holds `celeba/data/train` and `celeba/data/test` with LEAF's JSON files, and the pictures in
            `celeba/data/raw/img_align_celeba`.
        size: height and width in pixels; LEAF uses 84.
    """
    names, y, people, n_train = _read("celeba", data_root, _faces)
    paths = [data_root / "celeba" / "data" / "raw" / "img_align_celeba" / name for name in names.tolist()]
    cache, classes = data_root / f"celeba-{size}.images.npy", ["serious", "smiling"]
    advice = "put CelebA's aligned pictures there"
    return photographs("celeba", paths, y, n_train, cache, size, classes, mean, std, advice, groups=people)


def _faces(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    return np.array([str(name) for name in x], dtype=object), _two_classes(x, y)


@DATASETS.register("sent140")
def sent140(
    *,
    data_root: Path,
    download: bool,
    vocabulary: Annotated[int, Field(gt=FIRST)] = 10_000,
    length: PositiveInt = 25,
) -> Dataset:
    """Tweets of positive or negative sentiment (Go et al. 2009): tokens `[n, length]`; groups are the people.

    A token is a lower-case word (see `datasets.words`). LEAF's own model uses pretrained embeddings instead.

    Args:
        data_root: holds `sent140/data/train` and `sent140/data/test` with LEAF's JSON files.
        vocabulary: number of tokens, including those for padding and for unknown words.
        length: number of words kept of each text; the rest is cut off.
    """
    texts, y, people, n_train = _read("sent140", data_root, _tweets)
    words = [words_of(text) for text in texts.tolist()]
    x = numbered(words[:n_train], words[n_train:], vocabulary, length)
    return assemble("sent140", x, y, n_train, classes=["bad", "good"], groups=people, vocabulary=vocabulary)


def _tweets(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Texts, each the last entry of a row: id, date, query, user, text."""
    return np.array([str(row[4]) for row in x], dtype=object), _two_classes(x, y)


@DATASETS.register("shakespeare")
def shakespeare(*, data_root: Path, download: bool) -> Dataset:
    """The next character in lines of the plays: tokens `[n, 80]`, 80 classes; groups are the roles.

    Each role of a play is a user. A sample is 80 characters of its lines, and the label the next character.

    Args:
        data_root: holds `shakespeare/data/train` and `shakespeare/data/test` with LEAF's JSON files.
    """
    x, y, roles, n_train = _read("shakespeare", data_root, _lines)
    return assemble(
        "shakespeare", x, y, n_train, classes=[*ALPHABET], groups=roles, vocabulary=len(ALPHABET),
        notes=[_OVERLAP],
    )  # fmt: skip


def _lines(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    if len(x) != len(y) or {len(text) for text in x} - {LENGTH} or {len(text) for text in y} - {1}:
        raise ValueError(f"{len(x)} texts and {len(y)} characters, or a text that has not {LENGTH} characters")
    return _numbers("".join(x)).reshape(-1, LENGTH), _numbers("".join(y))


def _numbers(text: str) -> Array:
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    numbers: Array = np.where(codes < len(_NUMBER), _NUMBER[np.minimum(codes, len(_NUMBER) - 1)], -1)
    if len(numbers) and numbers.min() < 0:
        raise ValueError(f"{text[int(numbers.argmin())]!r} is none of LEAF's {len(ALPHABET)} characters")
    return numbers


def _read(name: str, data_root: Path, read: Read) -> tuple[Array, Array, Array, int]:
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
    parts = []
    for file in sorted(folder.glob("*.json")):
        with reading(name, file, _ADVICE):
            content: dict[str, Any] = json.loads(file.read_bytes())
            for user in content["users"]:
                samples = content["user_data"][user]
                if not samples["x"] and not samples["y"]:  # as of a user with too few samples for both parts
                    continue
                try:
                    x, y = read(samples["x"], samples["y"])
                except ValueError as error:
                    raise ValueError(f"user {user}: {error}") from None
                parts.append((x, y, np.full(len(y), str(user))))
    if not parts:
        raise UserError(f"{name}: {folder} has no JSON file with samples; {_ADVICE}")
    x, y, users = (np.concatenate(lists) for lists in zip(*parts, strict=True))
    return x, y, users


def _two_classes(x: list[Any], y: list[Any]) -> Array:
    """Labels of a user's samples, each 0 or 1.

    Raises:
        ValueError: a label is neither 0 nor 1, or there is not one for each sample.
    """
    labels = np.array([int(label) for label in y], np.int64)
    if len(x) != len(labels) or not set(labels.tolist()) <= {0, 1}:
        raise ValueError(f"{len(x)} samples, {len(y)} labels, or a label that is neither 0 nor 1")
    return labels
