"""Partitions by class, and what other partitions share with them; `bench/samples/division.py` completes each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from bench.data import EMPTY, Dataset, Indices, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator

MAX_DRAWS = 1000

Share = Annotated[float, Field(ge=0, le=1)]
SplitShares = tuple[Share | list[Share], Share, Share]  # for training (or values to draw from), validation and test
Kept = npt.NDArray[np.bool_]


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

    The first four arguments are those of `make_partition`.

    Args:
        balanced: a client that holds 1/N of all samples gets none of the remaining classes (PGFed's released code).
        min_samples: draw again until every client has that many (PGFed's released code).
        top_up: clients with fewer samples are filled up to this number, at random from the largest clients.
        shares: divide all samples, including the official test part, and `cut` each client's.
        fixed_tests: with `shares`, keep the same samples for tests whatever the seed.

    Raises:
        UserError: there are too few samples, or no draw gives every client `min_samples`.
    """
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    least = max(min_samples, top_up)
    if least * clients > len(samples.y):
        raise UserError(
            f"{clients} clients cannot have {least} samples each: {dataset.name} has {len(samples.y)} to deal out; "
            "lower min_samples, top_up or the number of clients"
        )
    for draw in range(MAX_DRAWS):
        again = [draw] if draw else []
        lists = _deal(samples, generator(seed, "partition", "dirichlet", *again), clients, alpha, balanced)
        if min(map(len, lists)) >= min_samples:
            break
    else:
        raise UserError(
            f"none of {MAX_DRAWS} draws with alpha = {alpha} gives each of {clients} clients {min_samples} samples of "
            f"{dataset.name}; take a smaller min_samples, a larger alpha or fewer clients, or top_up instead"
        )
    return samples.split(_topped_up(lists, top_up, seed))


@PARTITIONS.register("iid")
def iid(
    dataset: Dataset, *, clients: int, seed: int, shares: SplitShares | None = None, fixed_tests: bool = False
) -> Split:
    """Samples at random, in numbers that differ by at most one; `shares` and `fixed_tests` as in `dirichlet`.

    Raises:
        UserError: the shares add up to more than 1.
    """
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    shuffled = samples.spread(generator(seed, "partition", "iid").permutation(len(samples.y)))
    return samples.split(np.array_split(shuffled, clients))


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

    The data set, the number of clients and the seed are as in `make_partition`.

    Args:
        k: classes per client.
        same_classes: all clients have the same classes (the paper's IID case); otherwise each draws its own.
        test_share: share of each bucket that is for tests.
        fixed_tests: keep the same samples for tests whatever the seed: `test_share` of each class. Both parts of the
            class are then cut into buckets.

    Raises:
        UserError: there are fewer than k classes.
    """
    check_classes(dataset, "classes", k)
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
    return Split(train, test=test, global_test=EMPTY, kept=np.flatnonzero(kept))


def check_classes(dataset: Dataset, name: str, k: int) -> None:
    """Refuse k classes per client where the data have fewer."""
    if k > dataset.num_classes:
        raise UserError(f"partition {name!r}: k = {k}, but {dataset.name} has only {dataset.num_classes} classes")


def kept_for_tests(y: Indices, share: float) -> Kept:
    """Mark the samples kept for tests: this share of each class, the same for every seed and client."""
    kept = np.zeros(len(y), bool)
    for label in np.unique(y):
        samples = generator("partition", "kept for tests", int(label)).permutation(np.flatnonzero(y == label))
        kept[samples[: int(share * len(samples) + 0.5)]] = True
    return kept


def cut(indices: Indices, shares: SplitShares, seed: int, client: int, kept: Kept | None = None) -> list[Indices]:
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


@dataclass(frozen=True)
class DividedSamples:
    """The samples that a partition divides: all with `shares`, else the official training part.

    Attributes:
        y: `[n]` labels.
        seed: seed of the partition.
        shares: as in `dirichlet`; None: the harness makes validation shares and tests.
        kept: `[n]` mask of the samples that are kept for tests whatever the seed; None: each seed cuts its own.
    """

    y: Indices
    seed: int
    shares: SplitShares | None = None
    kept: Kept | None = None

    @classmethod
    def of(cls, dataset: Dataset, seed: int, shares: SplitShares | None, fixed_tests: bool) -> "DividedSamples":
        """The samples that `shares` divide, with those kept for tests if the tests are fixed."""
        if shares is None:
            return cls(dataset.y[: dataset.n_train], seed)
        return cls(dataset.y, seed, shares, kept_for_tests(dataset.y, shares[2]) if fixed_tests else None)

    def of_class(self, label: int, rng: np.random.Generator | None = None) -> Indices:
        """The samples of a class, shuffled if there is a generator, with those kept for tests spread evenly."""
        pool = np.flatnonzero(self.y == label)
        return self.spread(pool if rng is None else rng.permutation(pool))

    def by_class(self, rng: np.random.Generator) -> list[Indices]:
        """The samples of each class, shuffled."""
        return [self.of_class(label, rng) for label in range(int(self.y.max()) + 1)]

    def spread(self, pool: Indices) -> Indices:
        """Reorder a list so that any stretch has its share of the samples kept for tests, up to rounding."""
        if self.kept is None:
            return pool
        parts = [pool[~self.kept[pool]], pool[self.kept[pool]]]
        places = np.concatenate([(np.arange(len(part)) + 0.5) / max(1, len(part)) for part in parts])
        return np.concatenate(parts)[np.argsort(places, kind="stable")]

    def split(self, lists: Sequence[Indices]) -> Split:
        """The split of the clients' lists: with `shares`, `cut` each into training, validation and test.

        Raises:
            UserError: the shares add up to more than 1.
        """
        lists = [np.sort(indices) for indices in lists]
        if self.shares is None:
            return Split(lists)
        parts = [cut(indices, self.shares, self.seed, i, self.kept) for i, indices in enumerate(lists)]
        train, validation, test = zip(*parts, strict=True)
        always = EMPTY if self.kept is None else np.flatnonzero(self.kept)
        return Split(train, validation if self.shares[1] else None, test, EMPTY, always)


def _bucket(pool: Indices, clients: int, client: int) -> Indices:
    """The client's part when the list is cut into `clients` equal parts; the remainder is in none of them."""
    return np.split(pool[: len(pool) // clients * clients], clients)[client]


def _deal(
    samples: DividedSamples, rng: np.random.Generator, clients: int, alpha: float, balanced: bool
) -> list[Indices]:
    """Divide each class over the clients by a Dirichlet draw of its own."""
    stretches = []
    held = np.zeros(clients)
    for label in range(samples.y.max() + 1):
        pool = samples.of_class(label, rng)
        part = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            part = np.where(held < len(samples.y) / clients, np.maximum(part, np.finfo(float).tiny), 0)
            part /= part.sum()
        stretches.append(divide(pool, part))
        held += [len(stretch) for stretch in stretches[-1]]
    return [np.sort(np.concatenate(parts)) for parts in zip(*stretches, strict=True)]


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
