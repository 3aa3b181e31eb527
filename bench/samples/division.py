"""Dividing a data set over clients: by a registered partition, and what it leaves to the harness.

A registered partition is a factory `(dataset, *, clients, [alpha], [fixed_tests], seed, **options) -> Split`: it has a
parameter `alpha` if and only if it needs one, and `fixed_tests` if it draws tests of its own. `make_partition` adds
what it does not make: local test sets, validation shares and the global test set. The addresses of all draws begin with
(seed, "partition"), except for the samples that are kept for tests and the groups that become clients, which are the
same for every seed.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from bench.data import EMPTY, Dataset, Indices, Partition, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS, call_factory, is_external
from bench.samples.local_parts import label_counts, local_tests, split_validation
from bench.samples.subjects import check_sides, split_off_validation


def make_partition(
    dataset: Dataset,
    name: str,
    *,
    clients: int | Literal["all"],
    alpha: float | None,
    seed: int,
    protocol: str,
    validation_share: float,
    options: dict[str, Any],
) -> Partition:
    """Divide a data set over clients.

    A client's local test set has the label mix of its training data before the validation share is taken. Under the
    protocol `paper` no validation share is taken, and a partition that draws tests of its own draws new ones for every
    seed. Under the other protocols it keeps the same samples for tests whatever the seed, so that no trial of a sweep
    has seen samples that results are reported on. Under `tuning` there are no test sets, and the test part is not read.

    Raises:
        UserError: the partition is unknown; `alpha` is missing, out of range or not wanted; there are more clients than
            training samples; a subject of the data is both trained on and held out; or the partition itself raises it.
    """
    factory = PARTITIONS.get(name)
    parameters = inspect.signature(factory).parameters
    if "alpha" in parameters and (alpha is None or not 0 < alpha < math.inf):
        raise UserError(f"partition {name!r} needs a finite alpha above 0, not {alpha}")
    if "alpha" not in parameters and alpha is not None:
        raise UserError(f"partition {name!r} has no alpha; remove alpha = {alpha}")
    if clients != "all" and not 1 <= clients <= dataset.n_train:
        raise UserError(
            f"{clients} clients cannot share the {dataset.n_train} training samples of {dataset.name}; "
            "take fewer clients"
        )
    arguments: dict[str, Any] = {"alpha": alpha} if "alpha" in parameters else {}
    if "fixed_tests" in parameters:
        arguments["fixed_tests"] = protocol != "paper"
    arguments |= {"clients": clients, "seed": seed}
    split = call_factory(f"partition {name!r}", Split, factory, dataset, **arguments, **options)
    if is_external(factory):
        assert clients != "all"  # only our own partitions of groups take it
        split = _as_arrays(f"partition {name!r}", split)
        owner = check_lists(f"partition {name!r}", len(dataset.y), clients, split)
        split = _tested(f"partition {name!r}", dataset, split, owner)
    if protocol == "tuning":
        split = replace(split, test=[EMPTY] * len(split.train), global_test=EMPTY)
    paper = protocol == "paper"
    partition = _complete(dataset, split, seed, 0.0 if paper else validation_share, floor=paper)
    check_sides(f"partition {name!r}", dataset, partition)
    return partition


def _as_arrays(source: str, split: Split) -> Split:
    """Convert the lists of a user's split, which may be any sequences of integers, to arrays."""

    def array(values: Sequence[int] | Indices) -> Indices:
        indices = np.asarray(values)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise UserError(
                f"{source} has a list {indices.dtype} {indices.shape}; each should hold integers, one per sample"
            )
        return indices.astype(np.int64)

    def arrays(lists: Sequence[Indices] | None) -> list[Indices] | None:
        return None if lists is None else [array(values) for values in lists]

    return replace(
        split,
        train=[array(indices) for indices in split.train],
        validation=arrays(split.validation),
        test=arrays(split.test),
        global_test=None if split.global_test is None else array(split.global_test),
        kept=array(split.kept),
    )


def _tested(source: str, dataset: Dataset, split: Split, owner: Indices) -> Split:
    """A user's split, without a common test if clients train or validate on samples of the test part.

    Raises:
        UserError: they do, and tests are not given, so that they would be drawn from the same samples.
    """
    held = dataset.n_train + np.flatnonzero(owner[dataset.n_train :] >= 0)
    if held.size and split.test is None:
        raise UserError(
            f"{source} has clients train on sample {held[0]}, which is kept for tests; divide the first "
            f"{dataset.n_train} samples alone (`dataset.n_train`), or say what is tested in `test`"
        )
    return replace(split, global_test=EMPTY) if held.size and split.global_test is None else split


def check_lists(source: str, n: int, clients: int, split: Split) -> Indices:
    """Check the lists, and return for each sample the client that trains or validates on it, or -1.

    Args:
        source: where the lists come from, for messages.
        n: number of samples of the data set.
        clients: number of clients of the cell.
        split: the lists.

    Raises:
        UserError: the number of clients differs, an index is out of range or twice in a list, training or validation
            lists overlap, or a training sample is also a test sample.
    """
    for name, lists in (("train", split.train), ("validation", split.validation), ("test", split.test)):
        if lists is not None and len(lists) != clients:
            raise UserError(f"{source}: '{name}' has {len(lists)} lists; the cell has {clients} clients")
    owner = np.full(n, -1)
    for name, lists in (("train", split.train), ("validation", split.validation)):
        for client, indices in enumerate(lists or []):
            place = f"{source}: client {client}'s list in '{name}'"
            _check_list(place, indices, n)
            if (taken := indices[owner[indices] >= 0]).size:
                raise UserError(f"{place} has sample {taken[0]}, which client {owner[taken[0]]} has already")
            owner[indices] = client
    for client, indices in enumerate(split.test or []):
        _check_test(f"{source}: client {client}'s list in 'test'", indices, owner)
    if split.global_test is not None:
        _check_test(f"{source}: 'global_test'", split.global_test, owner)
    return owner


def _check_test(place: str, indices: Indices, owner: Indices) -> None:
    _check_list(place, indices, len(owner))
    if (taken := indices[owner[indices] >= 0]).size:
        raise UserError(f"{place} has sample {taken[0]}, on which client {owner[taken[0]]} trains or validates")


def _check_list(place: str, indices: Indices, n: int) -> None:
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise UserError(f"{place} goes from {indices.min()} to {indices.max()}; the data set has samples 0 to {n - 1}")
    if len(np.unique(indices)) != len(indices):
        raise UserError(f"{place} has a sample twice")


def _complete(dataset: Dataset, split: Split, seed: int, validation_share: float, *, floor: bool) -> Partition:
    train, validation = split.train, split.validation
    whole = train if validation is None else [np.concatenate(both) for both in zip(train, validation, strict=True)]
    test = local_tests(dataset, whole, seed, floor) if split.test is None else split.test
    if validation is None:
        if dataset.subjects is None:
            cut = [split_validation(dataset.y, indices, validation_share, seed, i) for i, indices in enumerate(train)]
        else:
            cut = split_off_validation(dataset.y, dataset.subjects, train, validation_share, seed)
        train, validation = [rest for rest, _ in cut], [held for _, held in cut]
    official = np.arange(dataset.n_train, len(dataset.y))
    return Partition(
        train=tuple(train),
        validation=tuple(validation),
        test=tuple(test),
        global_test=official if split.global_test is None else split.global_test,
        summary=summary_of(dataset, train, validation, test),
        kept=split.kept,
        names=split.names,
        new=split.new,
        left_out=split.left_out,
    )


def summary_of(
    dataset: Dataset, train: Sequence[Indices], validation: Sequence[Indices], test: Sequence[Indices]
) -> str:
    """Describe a partition in one line, from its lists."""
    counts = label_counts(dataset, train)
    sizes = counts.sum(axis=1)
    parts = [
        f"{len(sizes)} clients",
        f"{sizes.sum()} training samples (min {sizes.min()}, median {np.median(sizes):g}, max {sizes.max()})",
        f"{sum(map(len, validation))} for validation",
        f"{(counts > 0).sum(axis=1).mean():.1f} classes per client",
        f"{(sizes == 0).sum()} empty",
    ]
    untested = sum(len(indices) == 0 < size for indices, size in zip(test, sizes, strict=True))
    return ", ".join(parts) + (f", {untested} without a local test set" if untested else "")
