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
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from bench.data import Dataset, Indices, Partition
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator

MAX_DRAWS = 1000
_NONE: Indices = np.empty(0, np.int64)

Share = Annotated[float, Field(ge=0, le=1)]
Shares = tuple[Share | list[Share], Share, Share]  # for training (or values to draw from), validation and test


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
    if protocol == "tuning":
        split = replace(split, test=[_NONE] * len(split.train), global_test=_NONE)
    return _complete(dataset, split, seed, 0.0 if protocol == "paper" else validation_share)


@PARTITIONS.register("dirichlet")
def dirichlet(
    dataset: Dataset,
    *,
    clients: int,
    alpha: float,
    seed: int,
    balanced: bool = False,
    min_samples: NonNegativeInt = 0,
    top_up: NonNegativeInt = 0,
    shares: Shares | None = None,
) -> Split:
    """Label skew: of each class, client i gets the share d_i of a draw d ~ Dir(alpha * 1_N) (SCD, Appendix B).

    Shares are exact but for rounding of their running sums, nothing overlaps, and a client may stay empty.

    Args:
        dataset, clients, alpha, seed: as in `make_partition`.
        balanced: a client that holds 1/N of all samples gets none of the classes that follow (PGFed's released code).
        min_samples: draw again until every client has that many (PGFed's released code).
        top_up: clients with fewer samples get so many, at random, of the clients that have the most.
        shares: divide all samples, those of the official test part too, and `cut` each client's.

    Raises:
        UserError: there are too few samples, or no draw gives every client `min_samples`.
    """
    y = _dealt(dataset, shares)
    least = max(min_samples, top_up)
    if least * clients > len(y):
        raise UserError(
            f"{clients} clients cannot have {least} samples each: {dataset.name} has {len(y)} to deal out; lower "
            "min_samples, top_up or the number of clients"
        )
    for draw in range(MAX_DRAWS):
        again = [draw] if draw else []
        own = _deal(y, generator(seed, "partition", "dirichlet", *again), clients, alpha, balanced)
        if min(map(len, own)) >= min_samples:
            break
    else:
        raise UserError(
            f"none of {MAX_DRAWS} draws with alpha = {alpha} gives each of {clients} clients {min_samples} samples of "
            f"{dataset.name}; take a smaller min_samples, a larger alpha or fewer clients, or top_up instead"
        )
    return _finish(_topped_up(own, top_up, seed), shares, seed)


@PARTITIONS.register("iid")
def iid(dataset: Dataset, *, clients: int, seed: int, shares: Shares | None = None) -> Split:
    """Every client gets the same number of samples, but for one, at random; `shares` as in `dirichlet`.

    Raises:
        UserError: the shares add up to more than 1.
    """
    shuffled = generator(seed, "partition", "iid").permutation(len(_dealt(dataset, shares)))
    return _finish([np.sort(part) for part in np.array_split(shuffled, clients)], shares, seed)


@PARTITIONS.register("classes")
def classes(
    dataset: Dataset,
    *,
    clients: int,
    seed: int,
    k: PositiveInt,
    same_classes: bool = False,
    test_share: Share = 0.2,
) -> Split:
    """k classes per client, of each the N-th part of the official training part: the partition of SPFL.

    Each class is shuffled and cut into N buckets of equal size (the remainder is not used); client i gets bucket i of
    each of its classes, the first part for training and the rest for its test. The generic model is tested on the union
    of these tests.

    Args:
        dataset, clients, seed: as in `make_partition`.
        k: classes per client.
        same_classes: all clients have the same ones (the paper's IID case); else each draws its own.
        test_share: of each bucket.

    Raises:
        UserError: there are fewer than k classes.
    """
    if k > dataset.num_classes:
        raise UserError(f"partition 'classes': k = {k}, and {dataset.name} has {dataset.num_classes} classes")
    y = dataset.y[: dataset.n_train]
    pools = [
        generator(seed, "partition", "class", label).permutation(np.flatnonzero(y == label))
        for label in range(dataset.num_classes)
    ]
    train, test = [], []
    for client in range(clients):
        rng = generator(seed, "partition", "classes of", 0 if same_classes else client)
        chosen = np.sort(rng.choice(dataset.num_classes, k, replace=False))
        buckets = [np.split(pools[c][: len(pools[c]) // clients * clients], clients)[client] for c in chosen]
        halves = [divide(bucket, np.array([1 - test_share, test_share])) for bucket in buckets]
        train.append(np.sort(np.concatenate([first for first, _ in halves])))
        test.append(np.sort(np.concatenate([second for _, second in halves])))
    return Split(train, test=test, global_test=_NONE)


def cut(own: Indices, shares: Shares, seed: int, client: int) -> list[Indices]:
    """Cut a client's samples at random into training, validation and test; what the shares leave over is not used.

    Of several values for training the client draws one, as in COMET. It depends on no other client.

    Raises:
        UserError: the shares add up to more than 1.
    """
    values, *others = shares
    choices = values if isinstance(values, list) else [values]
    if not choices or max(choices) + sum(others) > 1 + 1e-9:
        raise UserError(f"shares = {list(shares)} should add up to 1 at most: for training, validation and test")
    rng = generator(seed, "partition", "shares", client)
    chosen = np.array([rng.choice(choices), *others])
    *parts, _ = divide(rng.permutation(own), np.append(chosen, 1 - chosen.sum()))
    return [np.sort(part) for part in parts]


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


def _dealt(dataset: Dataset, shares: Shares | None) -> Indices:
    """Labels of the samples that are divided: of all with `shares`, else of the official training part."""
    return dataset.y[: dataset.n_train] if shares is None else dataset.y


def _deal(y: Indices, rng: np.random.Generator, clients: int, alpha: float, balanced: bool) -> list[Indices]:
    """Divide each class by one draw."""
    own: list[list[Indices]] = [[] for _ in range(clients)]
    held = np.zeros(clients)
    for label in range(y.max() + 1):
        pool = rng.permutation(np.flatnonzero(y == label))
        part = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            part = np.where(held < len(y) / clients, np.maximum(part, np.finfo(float).tiny), 0)
            part /= part.sum()
        for client, given in enumerate(divide(pool, part)):
            own[client].append(given)
            held[client] += len(given)
    return [np.sort(np.concatenate(parts)) for parts in own]


def _topped_up(own: list[Indices], least: int, seed: int) -> list[Indices]:
    """Move samples of the clients that have the most to those with fewer than `least`; there must be enough in all."""
    own = list(own)
    for client in range(len(own)):
        rng = generator(seed, "partition", "top up", client)
        while (missing := least - len(own[client])) > 0:
            donor = max(range(len(own)), key=lambda i: len(own[i]))
            moved = rng.permutation(len(own[donor]))[: min(missing, len(own[donor]) - least)]
            own[client] = np.sort(np.append(own[client], own[donor][moved]))
            own[donor] = np.delete(own[donor], moved)
    return own


def _finish(own: list[Indices], shares: Shares | None, seed: int) -> Split:
    if shares is None:
        return Split(own)
    train, validation, test = zip(*(cut(one, shares, seed, i) for i, one in enumerate(own)), strict=True)
    return Split(train, validation if shares[1] else None, test, _NONE)


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
        tests.append(np.sort(np.concatenate([*drawn, _NONE])))
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
