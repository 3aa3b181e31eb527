"""Build a checked `Dataset` from a loader's arrays; shared by all loaders."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.data import Array, Dataset, Indices
from bench.errors import UserError
from bench.rng import generator
from bench.samples.normalising import channel_statistics
from bench.samples.subjects import most_frequent

TEST_SHARE = 0.25
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Names of the parts of the user's own data, in small letters, and what they are. The validation part joins the
training part, as validation samples are drawn for each client."""
_LISTED = 10  # labels in a note


def assemble(
    name: str,
    x: Array,
    y: Array,
    n_train: int,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] = (),
    checksum: str = "",
    rows: Indices | None = None,
    groups: Array | None = None,
    subjects: Array | None = None,
    vocabulary: int = 0,
    notes: Sequence[str] = (),
    **further: Any,
) -> Dataset:
    """Build a data set from arrays; `mean` and `std` are computed from the training part where they are not given.

    Args:
        name: name of the data set in reports.
        x: `[n, channels, height, width]` uint8 or float32, `[n, channels, time]` or `[n, features]` float32, or
            `[n, length]` integer token numbers; the training part comes first.
        y: `[n]` labels: integers from 0 if `classes` names them, else any integers or texts.
        n_train: size of the training part.
        mean, std: per channel, in units of `x / 255` for images and of `x` otherwise.
        classes: names of the classes; if empty, the labels that occur are the classes (`occurring`).
        checksum: of the content, where reading all of it again would take long; computed if empty.
        rows: `[n]` the row of the user's file that each sample comes from; None if the order is the same.
        groups: `[n]` integers or text: the group (person, hospital, ...) that each sample belongs to.
        subjects: `[n]` integers or text: whom or what each sample is of, where there are several samples of one.
        vocabulary: number of tokens if the samples are texts, else 0.
        notes, further: as in `Dataset`.

    Raises:
        UserError: `mean` or `std` does not fit the channels, there is not one label (and one group, one subject) for
            each sample, a label or a token is out of range, or a subject is in the training part and the test part.
    """
    if vocabulary:
        if x.min() < 0 or x.max() >= vocabulary:
            raise UserError(f"{name}: the tokens go from {x.min()} to {x.max()}; they should be 0 .. {vocabulary - 1}")
        mean, std, x = (), (), x.astype(np.int32)
    if y.dtype.kind == "f" and not (y == np.rint(y)).all():
        raise UserError(f"{name}: some labels are neither integers nor texts; a label is the name of a class")
    if not classes and y.ndim == 1:
        y, classes = occurring(y)
        notes = [*notes, numbering(name, classes)] if classes else notes
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y, dtype=np.int64)
    if y.shape != (len(x),) or not 0 < n_train <= len(y):
        raise UserError(
            f"{name}: {len(x)} samples, labels of shape {y.shape}, {n_train} of them for training; there should be one "
            "label for each sample, and some to train on"
        )
    numbers, group_names = (None, ()) if groups is None else _numbered(name, "groups", groups, len(y))
    subject_numbers = None if subjects is None else _subjects(name, subjects, len(y), n_train)
    computed = channel_statistics(x[:n_train]) if mean is None or std is None else ((), ())
    return Dataset(
        name=name,
        x=x,
        y=y,
        n_train=n_train,
        num_classes=len(classes) or int(y.max()) + 1,
        mean=computed[0] if mean is None else tuple(map(float, mean)),
        std=computed[1] if std is None else tuple(map(float, std)),
        checksum=checksum or content_checksum(x, y, n_train),
        classes=tuple(classes),
        rows=rows,
        groups=numbers,
        group_names=group_names,
        subjects=subject_numbers,
        vocabulary=vocabulary,
        notes=tuple(notes),
        **further,
    )


def occurring(y: Array) -> tuple[Indices, tuple[str, ...]]:
    """Number the labels that occur, so that there is no class without samples.

    Args:
        y: `[n]` integers or texts.

    Returns:
        `[n]` each label as its place among the sorted labels, and these labels as names of the classes. Integers 0, 1,
        2, ... without a gap are returned as they are, without names.
    """
    labels, places = np.unique(y, return_inverse=True)
    if labels.dtype.kind in "biuf" and np.array_equal(labels, np.arange(len(labels))):
        return y.astype(np.int64), ()
    return places.astype(np.int64), tuple(str(label) for label in labels.tolist())


def numbering(name: str, classes: Sequence[str]) -> str:
    """Say how the labels that occur are numbered."""
    listed = ", ".join(classes[:_LISTED]) + (", ..." if len(classes) > _LISTED else "")
    return f"{name}: the labels that occur are its classes, numbered 0 to {len(classes) - 1} in this order: {listed}"


def _numbered(name: str, what: str, owners: Array, n: int) -> tuple[Indices, tuple[str, ...]]:
    """Each sample's group or subject as an index into the sorted names, and the names; integers sort as numbers."""
    if owners.shape != (n,) or owners.dtype.kind not in "iuU":
        raise UserError(
            f"{name}: {what!r} is {owners.dtype} {owners.shape}; it should hold one integer or text for each of the "
            f"{n} samples of all parts"
        )
    names, numbers = np.unique(owners, return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, names.tolist()))


def _subjects(name: str, subjects: Array, n: int, n_train: int) -> Indices:
    """Each sample's subject as a number.

    Raises:
        UserError: there is not one for each sample, or one is in the training part and the test part.
    """
    numbers, names = _numbered(name, "subjects", subjects, n)
    if (both := np.intersect1d(numbers[:n_train], numbers[n_train:])).size:
        raise UserError(
            f"{name}: the training part and the test part both have samples of {both.size} of {len(names)} subjects, "
            f"such as {names[both[0]]!r}; put all samples of a subject into one part"
        )
    return numbers


def held_out_order(y: Array, subjects: Array | None = None) -> tuple[Indices, int]:
    """An order of the samples whose end is a fixed stratified test part, and the size of the training part.

    The test part is 25 % of each class, and the same for every seed and partition. A class with a single sample stays
    in the training part. With `subjects`, `[samples]`, it is 25 % of the subjects of each class, that of most of their
    samples.
    """
    if subjects is not None:
        _, numbers = np.unique(subjects, return_inverse=True)
        order, n_train = held_out_order(most_frequent(y, numbers))
        held = np.isin(numbers, order[n_train:])
        return np.argsort(held, kind="stable"), int((~held).sum())
    rng = generator("official test part")
    test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        indices = rng.permutation(np.flatnonzero(y == label))
        test[indices[: int(TEST_SHARE * len(indices) + 0.5)]] = True
    return np.argsort(test, kind="stable"), int((~test).sum())


def content_checksum(x: Array, y: Indices, n_train: int) -> str:
    """Hex digest of the samples and labels, including their order and the samples' type."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{x.dtype.str} {x.shape} {n_train}".encode())
    digest.update(x.data)
    digest.update(y.astype("<i8", copy=False).data)
    return digest.hexdigest()
