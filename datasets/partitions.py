"""Partitions of a data set over clients.

A registered partition is a factory `(dataset, *, clients, [alpha], [fixed_tests], seed, **options) -> Split`: it has a
parameter `alpha` if and only if it needs one, and `fixed_tests` if it draws tests of its own. `make_partition` adds
what it does not make: local test sets, validation shares and the global test set. The addresses of all draws begin with
(seed, "partition"), except for the samples that are kept for tests and the groups that become clients, which are the
same for every seed.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from bench.data import Dataset, Indices, Partition
from bench.errors import UserError
from bench.plugin import PARTITIONS, call_factory, is_external
from bench.rng import generator
from datasets.lists import check_lists
from datasets.local_parts import label_counts, local_tests, split_validation
from datasets.subjects import check_sides, split_off_validation

MAX_DRAWS = 1000
NONE: Indices = np.empty(0, np.int64)

Share = Annotated[float, Field(ge=0, le=1)]
SplitShares = tuple[Share | list[Share], Share, Share]  # for training (or values to draw from), validation and test


@dataclass(frozen=True)
class Split:
    """Return value of a registered partition: index lists per client; None stands for lists that the harness makes.

    Attributes:
        train: local training data; if `validation` is None, the harness takes the validation shares from it.
        validation, test: as in `Partition`.
        global_test: as in `Partition`; if it is None, it is the official test part.
        kept, names, new, left_out: as in `Partition`.
    """

    train: Sequence[Indices]
    validation: Sequence[Indices] | None = None
    test: Sequence[Indices] | None = None
    global_test: Indices | None = None
    kept: Indices = field(default_factory=lambda: NONE)
    names: tuple[str, ...] = ()
    new: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


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
        split = replace(split, test=[NONE] * len(split.train), global_test=NONE)
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
    return replace(split, global_test=NONE) if held.size and split.global_test is None else split


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
    shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:
    """Label skew: of each class, client i gets the share d_i of a draw d ~ Dir(alpha * 1_N) (SCD, Appendix B).

    The classes are cut at the rounded running sums of the shares. No sample is given twice; a client may stay empty.

    Args:
        dataset, clients, alpha, seed: as in `make_partition`.
        balanced: a client that holds 1/N of all samples gets none of the remaining classes (PGFed's released code).
        min_samples: draw again until every client has that many (PGFed's released code).
        top_up: clients with fewer samples are filled up to this number, at random from the largest clients.
        shares: divide all samples, including the official test part, and `cut` each client's.
        fixed_tests: with `shares`, keep the same samples for tests whatever the seed.

    Raises:
        UserError: there are too few samples, or no draw gives every client `min_samples`.
    """
    y = dealt(dataset, shares)
    least = max(min_samples, top_up)
    if least * clients > len(y):
        raise UserError(
            f"{clients} clients cannot have {least} samples each: {dataset.name} has {len(y)} to deal out; lower "
            "min_samples, top_up or the number of clients"
        )
    kept = kept_of(y, shares, fixed_tests)
    for draw in range(MAX_DRAWS):
        again = [draw] if draw else []
        lists = _deal(y, kept, generator(seed, "partition", "dirichlet", *again), clients, alpha, balanced)
        if min(map(len, lists)) >= min_samples:
            break
    else:
        raise UserError(
            f"none of {MAX_DRAWS} draws with alpha = {alpha} gives each of {clients} clients {min_samples} samples of "
            f"{dataset.name}; take a smaller min_samples, a larger alpha or fewer clients, or top_up instead"
        )
    return finish(_topped_up(lists, top_up, seed), shares, kept if fixed_tests else None, seed)


@PARTITIONS.register("iid")
def iid(
    dataset: Dataset, *, clients: int, seed: int, shares: SplitShares | None = None, fixed_tests: bool = False
) -> Split:
    """Samples at random, in numbers that differ by at most one; `shares` and `fixed_tests` as in `dirichlet`.

    Raises:
        UserError: the shares add up to more than 1.
    """
    y = dealt(dataset, shares)
    kept = kept_of(y, shares, fixed_tests)
    shuffled = spread(generator(seed, "partition", "iid").permutation(len(y)), kept)
    lists = [np.sort(part) for part in np.array_split(shuffled, clients)]
    return finish(lists, shares, kept if fixed_tests else None, seed)


@PARTITIONS.register("classes")
def classes(
    dataset: Dataset,
    *,
    clients: int,
    seed: int,
    k: PositiveInt,
    same_classes: bool = False,
    test_share: Share = 0.2,
    fixed_tests: bool = False,
) -> Split:
    """k classes per client, and one N-th of the official training part of each: the partition of SPFL.

    Each class is shuffled and cut into N buckets of equal size (the remainder is not used). Client i gets bucket i of
    each of its classes, the first part for training and the rest for its test. The generic model is tested on the union
    of these tests.

    Args:
        dataset, clients, seed: as in `make_partition`.
        k: classes per client.
        same_classes: all clients have the same classes (the paper's IID case); otherwise each draws its own.
        test_share: share of each bucket that is for tests.
        fixed_tests: keep the same samples for tests whatever the seed: `test_share` of each class. Both parts of the
            class are then cut into buckets.

    Raises:
        UserError: there are fewer than k classes.
    """
    if k > dataset.num_classes:
        raise UserError(f"partition 'classes': k = {k}, and {dataset.name} has {dataset.num_classes} classes")
    y = dataset.y[: dataset.n_train]
    kept = kept_for_tests(y, test_share) if fixed_tests else np.zeros(len(y), bool)
    pools = [
        generator(seed, "partition", "class", label).permutation(np.flatnonzero(y == label))
        for label in range(dataset.num_classes)
    ]
    train, test = [], []
    for client in range(clients):
        rng = generator(seed, "partition", "classes of", 0 if same_classes else client)
        chosen = np.sort(rng.choice(dataset.num_classes, k, replace=False))
        if fixed_tests:
            halves = [
                [_bucket(pools[c][of_part[pools[c]]], clients, client) for of_part in (~kept, kept)] for c in chosen
            ]
        else:
            shares = np.array([1 - test_share, test_share])
            halves = [divide(_bucket(pools[c], clients, client), shares) for c in chosen]
        train.append(np.sort(np.concatenate([first for first, _ in halves])))
        test.append(np.sort(np.concatenate([second for _, second in halves])))
    return Split(train, test=test, global_test=NONE, kept=np.flatnonzero(kept))


def kept_for_tests(y: Indices, share: float) -> npt.NDArray[np.bool_]:
    """Mark the samples kept for tests: this share of each class, the same for every seed and client."""
    kept = np.zeros(len(y), bool)
    for label in np.unique(y):
        samples = generator("partition", "kept for tests", int(label)).permutation(np.flatnonzero(y == label))
        kept[samples[: int(share * len(samples) + 0.5)]] = True
    return kept


def cut(
    indices: Indices, shares: SplitShares, seed: int, client: int, kept: npt.NDArray[np.bool_] | None = None
) -> list[Indices]:
    """Cut a client's samples at random into training, validation and test; the rest, if any, is not used.

    If there are several values for training, the client draws one of them, as in COMET. The draws do not depend on
    other clients. With `kept`, the client's kept samples are its test, and only its other samples are cut.

    Raises:
        UserError: the shares add up to more than 1.
    """
    values, *others = shares
    choices = values if isinstance(values, list) else [values]
    if not choices or max(choices) + sum(others) > 1 + 1e-9:
        raise UserError(f"shares = {list(shares)} should add up to 1 at most: for training, validation and test")
    rng = generator(seed, "partition", "shares", client)
    chosen = np.array([rng.choice(choices), *others])
    if kept is None:
        *parts, _ = divide(rng.permutation(indices), np.append(chosen, 1 - chosen.sum()))
    else:
        of_rest = chosen[:2] / max(1 - chosen[2], np.finfo(float).tiny)  # avoids 0 / 0 where all samples are kept
        *parts, _ = divide(rng.permutation(indices[~kept[indices]]), np.append(of_rest, 1 - of_rest.sum()))
        parts.append(indices[kept[indices]])
    return [np.sort(part) for part in parts]


def divide(pool: Indices, shares: npt.NDArray[np.float64]) -> list[Indices]:
    """Cut a list at the rounded running sums of the shares, which add up to 1: no sample is lost or given twice."""
    cuts = np.rint(np.cumsum(shares[:-1]) * len(pool)).astype(np.int64)
    return np.split(pool, np.minimum(cuts, len(pool)))


def dealt(dataset: Dataset, shares: SplitShares | None) -> Indices:
    """Labels of the samples that are divided: all samples with `shares`, else the official training part."""
    return dataset.y[: dataset.n_train] if shares is None else dataset.y


def kept_of(y: Indices, shares: SplitShares | None, fixed_tests: bool) -> npt.NDArray[np.bool_]:
    """Mark those of the divided samples that are kept for tests whatever the seed; none without `fixed_tests`."""
    return kept_for_tests(y, shares[2]) if fixed_tests and shares else np.zeros(len(y), bool)


def spread(pool: Indices, kept: npt.NDArray[np.bool_]) -> Indices:
    """Reorder a list so that its kept samples are spread evenly: any stretch has its share of them, up to rounding."""
    parts = [pool[~kept[pool]], pool[kept[pool]]]
    places = np.concatenate([(np.arange(len(part)) + 0.5) / max(1, len(part)) for part in parts])
    return np.concatenate(parts)[np.argsort(places, kind="stable")]


def _bucket(pool: Indices, clients: int, client: int) -> Indices:
    """The client's part when the list is cut into `clients` equal parts; the remainder is in none of them."""
    return np.split(pool[: len(pool) // clients * clients], clients)[client]


def _deal(
    y: Indices, kept: npt.NDArray[np.bool_], rng: np.random.Generator, clients: int, alpha: float, balanced: bool
) -> list[Indices]:
    """Divide each class over the clients by a Dirichlet draw of its own."""
    lists: list[list[Indices]] = [[] for _ in range(clients)]
    held = np.zeros(clients)
    for label in range(y.max() + 1):
        pool = spread(rng.permutation(np.flatnonzero(y == label)), kept)
        part = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            part = np.where(held < len(y) / clients, np.maximum(part, np.finfo(float).tiny), 0)
            part /= part.sum()
        for client, samples in enumerate(divide(pool, part)):
            lists[client].append(samples)
            held[client] += len(samples)
    return [np.sort(np.concatenate(parts)) for parts in lists]


def _topped_up(lists: list[Indices], least: int, seed: int) -> list[Indices]:
    """Move samples from the largest clients to those with fewer than `least`; there must be enough samples in all."""
    lists = list(lists)
    for client in range(len(lists)):
        rng = generator(seed, "partition", "top up", client)
        while (missing := least - len(lists[client])) > 0:
            donor = max(range(len(lists)), key=lambda i: len(lists[i]))
            moved = rng.permutation(len(lists[donor]))[: min(missing, len(lists[donor]) - least)]
            lists[client] = np.sort(np.append(lists[client], lists[donor][moved]))
            lists[donor] = np.delete(lists[donor], moved)
    return lists


def finish(lists: list[Indices], shares: SplitShares | None, kept: npt.NDArray[np.bool_] | None, seed: int) -> Split:
    """Make the split of the clients' lists: with `shares`, `cut` each into training, validation and test.

    Args:
        lists: index lists by client.
        shares: as in `dirichlet`; None: the harness makes validation shares and tests.
        kept: `[samples]` mask of the samples that are kept for tests whatever the seed; None: no sample is.
        seed: seed of the partition.

    Raises:
        UserError: the shares add up to more than 1.
    """
    if shares is None:
        return Split(lists)
    parts = [cut(indices, shares, seed, i, kept) for i, indices in enumerate(lists)]
    train, validation, test = zip(*parts, strict=True)
    always = NONE if kept is None else np.flatnonzero(kept)
    return Split(train, validation if shares[1] else None, test, NONE, always)


def _complete(dataset: Dataset, split: Split, seed: int, validation_share: float, *, floor: bool) -> Partition:
    train, validation = split.train, split.validation
    if validation is None:
        test = local_tests(dataset, train, seed, floor) if split.test is None else split.test
        if dataset.subjects is None:
            cut = [split_validation(dataset.y, indices, validation_share, seed, i) for i, indices in enumerate(train)]
        else:
            cut = split_off_validation(dataset.y, dataset.subjects, train, validation_share, seed)
        train, validation = [rest for rest, _ in cut], [held for _, held in cut]
    else:
        whole = [np.concatenate(both) for both in zip(train, validation, strict=True)]
        test = local_tests(dataset, whole, seed, floor) if split.test is None else split.test
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
