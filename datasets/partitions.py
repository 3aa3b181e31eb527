"""Partitions of a data set over clients (design, section 7).

A registered partition is a factory `(dataset, *, clients, [alpha], seed, **options) -> Split`: it has a parameter
`alpha` if and only if it needs one. `make_partition` adds what it leaves open: local test sets, validation shares and
the global test set. All draws have addresses that begin with (seed, "partition").
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.data import Dataset, Indices, Partition
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator


@dataclass(frozen=True)
class Split:
    """What a registered partition returns: index lists per client, and None for what the harness shall make.

    Attributes:
        train: local training data; with `validation` None, validation shares are still to be taken from it.
        validation, test: as in `Partition`.
        global_test: as in `Partition`; None is the whole official test part.
    """

    train: Sequence[Indices]
    validation: Sequence[Indices] | None = None
    test: Sequence[Indices] | None = None
    global_test: Indices | None = None


def make_partition(
    dataset: Dataset,
    name: str,
    *,
    clients: int,
    alpha: float | None,
    seed: int,
    protocol: str,
    validation_share: float,
    options: dict[str, Any],
) -> Partition:
    """Divide a data set.

    Local test sets have the label mix of all local training data, that is, before the validation share is taken. Under
    the protocol `paper` no validation share is taken; under `tuning` there are no test sets, and the test part is not
    read.

    Raises:
        UserError: unknown partition; `alpha` missing, out of range or not wanted; more clients than training samples;
            or the partition's own reasons.
    """
    factory = PARTITIONS.get(name)
    known = inspect.signature(factory).parameters
    if "alpha" in known and (alpha is None or not 0 < alpha < math.inf):
        raise UserError(f"partition {name!r} needs a finite alpha above 0, not {alpha}")
    if "alpha" not in known and alpha is not None:
        raise UserError(f"partition {name!r} has no alpha; remove alpha = {alpha}")
    if not 1 <= clients <= dataset.n_train:
        raise UserError(f"{clients} clients cannot share the {dataset.n_train} training samples of {dataset.name}")
    given = {"alpha": alpha} if "alpha" in known else {}
    split: Split = factory(dataset, clients=clients, seed=seed, **given, **options)
    none = np.empty(0, np.int64)
    if protocol == "tuning":
        split = replace(split, test=[none] * len(split.train), global_test=none)
    return _complete(dataset, split, seed, 0.0 if protocol == "paper" else validation_share)


@PARTITIONS.register("dirichlet")
def dirichlet(dataset: Dataset, *, clients: int, alpha: float, seed: int) -> Split:
    """Label skew: of each class, client i gets the share d_i of a draw d ~ Dir(alpha * 1_N) (SCD, Appendix B).

    Shares are exact but for rounding of their running sums, nothing overlaps, and a client may stay empty.
    """
    rng = generator(seed, "partition", "dirichlet")
    own: list[list[Indices]] = [[] for _ in range(clients)]
    y = dataset.y[: dataset.n_train]
    for label in range(dataset.num_classes):
        pool = rng.permutation(np.flatnonzero(y == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        for client, part in enumerate(divide(pool, shares)):
            own[client].append(part)
    return Split([np.sort(np.concatenate(parts)) for parts in own])


@PARTITIONS.register("iid")
def iid(dataset: Dataset, *, clients: int, seed: int) -> Split:
    """Every client gets the same number of training samples, but for one, at random."""
    shuffled = generator(seed, "partition", "iid").permutation(dataset.n_train)
    return Split([np.sort(part) for part in np.array_split(shuffled, clients)])


def divide(pool: Indices, shares: npt.NDArray[np.float64]) -> list[Indices]:
    """Cut a list at the rounded running sums of the shares, which add up to 1: no sample is lost or given twice."""
    cuts = np.rint(np.cumsum(shares[:-1]) * len(pool)).astype(np.int64)
    return np.split(pool, np.minimum(cuts, len(pool)))


def partition_counts(dataset: Dataset, partition: Partition) -> npt.NDArray[np.int64]:
    """Training samples `[clients, classes]`, without the validation shares."""
    return _label_counts(dataset, partition.train)


def draw_partition(dataset: Dataset, partition: Partition, path: Path) -> None:
    """Draw a client x class picture: a bubble's area is the number of training samples, a cross an empty client.

    Args:
        path: the file to write; its ending tells the format.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = partition_counts(dataset, partition)
    clients, classes = counts.shape
    cell = max(0.12, min(0.3, 14 / max(clients, classes)))  # inches between neighbours
    width, height = min(2 + cell * clients, 24.0), min(1.2 + cell * classes, 24.0)
    figure = Figure(figsize=(width, max(height, 2.8)), layout="constrained")
    axes = figure.subplots()
    per_sample = (72 * cell) ** 2 / max(1, counts.max())  # square points: the largest bubbles just touch
    client, label = np.nonzero(counts)
    style: dict[str, Any] = {"color": "#0072B2", "linewidths": 0}
    axes.scatter(client, label, s=np.maximum(counts[client, label] * per_sample, 1.5), **style)
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    axes.scatter(empty, np.full(len(empty), -0.8), s=20, color="#D55E00", marker="x", clip_on=False)
    for example in sorted({int(counts.max() * share) for share in (0.1, 0.5, 1.0)} - {0}):
        axes.scatter([], [], s=example * per_sample, label=str(example), **style)
    axes.set(xlabel="client", ylabel="class", xlim=(-1, clients), ylim=(-1, classes), title=dataset.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if len(dataset.classes) == classes <= 30:
        axes.set_yticks(range(classes), dataset.classes)
    axes.legend(
        title="samples", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelspacing=2.5 * cell / 0.3
    )
    figure.savefig(path, dpi=150)


def _complete(dataset: Dataset, split: Split, seed: int, validation_share: float) -> Partition:
    train, validation = split.train, split.validation
    if validation is None:
        test = _local_tests(dataset, train, seed) if split.test is None else split.test
        cut = [_validation(dataset.y, own, validation_share, seed, i) for i, own in enumerate(train)]
        train, validation = [rest for rest, _ in cut], [held for _, held in cut]
    else:
        whole = [np.concatenate(both) for both in zip(train, validation, strict=True)]
        test = _local_tests(dataset, whole, seed) if split.test is None else split.test
    official = np.arange(dataset.n_train, len(dataset.y))
    return Partition(
        train=tuple(train),
        validation=tuple(validation),
        test=tuple(test),
        global_test=official if split.global_test is None else split.global_test,
        summary=_summary(dataset, train, validation, test),
    )


def _local_tests(dataset: Dataset, train: Sequence[Indices], seed: int) -> list[Indices]:
    """Draw local test sets from the official test part with each client's label mix, without replacement.

    Of class j, client i gets floor(n_ij * n_test / n_train) samples, as the authors' code of SCD does, and at most all
    there are. By the floor a small client's test set can be empty; such a client drops out of averages over clients.
    """
    n_test = len(dataset.y) - dataset.n_train
    y_test = dataset.y[dataset.n_train :]
    pools = [dataset.n_train + np.flatnonzero(y_test == label) for label in range(dataset.num_classes)]
    wanted = _label_counts(dataset, train) * n_test // dataset.n_train
    tests = []
    for client, row in enumerate(wanted):
        rng = generator(seed, "partition", "test", client)
        drawn = [rng.permutation(pool)[:count] for pool, count in zip(pools, row, strict=True) if count]
        tests.append(np.sort(np.concatenate([*drawn, np.empty(0, np.int64)])))
    return tests


def _validation(y: Indices, own: Indices, share: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Take the validation share from one client's samples, of each class in proportion (largest remainders).

    At least one sample stays for training, so a one-sample client has no validation.
    """
    size = max(0, min(round(share * len(own)), len(own) - 1))
    if size == 0:
        return own, own[:0]
    rng = generator(seed, "partition", "validation", client)
    shuffled = rng.permutation(len(own))
    labels, counts = np.unique(y[own], return_counts=True)
    ties = rng.permutation(len(labels))
    whole, remainder = np.divmod(counts * size, len(own))
    order = np.lexsort((ties, -remainder))
    whole[order[: size - whole.sum()]] += 1
    held = np.zeros(len(own), dtype=bool)
    for label, count in zip(labels, whole, strict=True):
        held[shuffled[y[own[shuffled]] == label][:count]] = True
    return own[~held], own[held]


def _label_counts(dataset: Dataset, lists: Sequence[Indices]) -> npt.NDArray[np.int64]:
    return np.stack([np.bincount(dataset.y[own], minlength=dataset.num_classes) for own in lists])


def _summary(dataset: Dataset, train: Sequence[Indices], validation: Sequence[Indices], test: Sequence[Indices]) -> str:
    counts = _label_counts(dataset, train)
    sizes = counts.sum(axis=1)
    parts = [
        f"{len(sizes)} clients",
        f"{sizes.sum()} training samples (min {sizes.min()}, median {np.median(sizes):g}, max {sizes.max()})",
        f"{sum(map(len, validation))} for validation",
        f"{(counts > 0).sum(axis=1).mean():.1f} classes per client",
        f"{(sizes == 0).sum()} empty",
    ]
    untested = sum(len(one) == 0 < size for one, size in zip(test, sizes, strict=True))
    return ", ".join(parts) + (f", {untested} without a local test set" if untested else "")
