"""Further partitions: shards, few classes with Dirichlet shares, unequal sizes, mixtures, equal sizes, superclasses.

Each divides the samples of the official training part or, with `shares`, all samples, and then `cut`s each client's.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from bench.data import Dataset, Indices, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator
from datasets.partitions import Share, SplitShares, dealt, divide, finish, kept_of, spread

Kept = npt.NDArray[np.bool_]
Deal = Callable[[Indices, Kept, np.random.Generator], list[Indices]]


@PARTITIONS.register("shards")
def shards(
    dataset: Dataset, *, clients: int, seed: int, k: PositiveInt = 2, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """Samples sorted by label and cut into shards; each client gets k at random (McMahan et al. 2017: k = 2).

    Raises:
        UserError: there are fewer samples than shards.
    """

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        if len(y) < k * clients:
            raise UserError(
                f"partition 'shards': {dataset.name} has {len(y)} samples, too few for {k * clients} shards"
            )
        parts = np.array_split(np.concatenate(_by_class(y, kept, rng)), k * clients)
        order = rng.permutation(k * clients).reshape(clients, k)
        return [np.concatenate([parts[shard] for shard in numbers]) for numbers in order]

    return _split(dataset, seed, "shards", shares, fixed_tests, deal)


@PARTITIONS.register("exdir")
def exdir(
    dataset: Dataset, *, clients: int, alpha: float, seed: int, k: PositiveInt, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """Extended Dirichlet: k classes per client, and each class in Dirichlet shares over the clients that have it.

    Li and Lyu 2023, "Convergence Analysis of Sequential Federated Learning on Heterogeneous Data"; PFLlib's name.
    Clients choose the classes that the fewest clients have so far, so every class has a client.

    Raises:
        UserError: there are fewer than k classes, or too few clients for all classes.
    """
    classes = dataset.num_classes
    if not k <= classes <= k * clients:
        raise UserError(
            f"partition 'exdir': k = {k} classes for each of {clients} clients does not fit {classes} classes"
        )

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        def cut(pool: Indices, members: int) -> list[Indices]:
            return divide(pool, rng.dirichlet(np.full(members, alpha)))

        return _k_each(y, kept, rng, classes, clients, k, cut)

    return _split(dataset, seed, "exdir", shares, fixed_tests, deal)


@PARTITIONS.register("quantity")
def quantity(
    dataset: Dataset, *, clients: int, seed: int, law: Literal["dirichlet", "lognormal", "power"],
    parameter: Annotated[float, Field(gt=0)], min_samples: PositiveInt = 1, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """Quantity skew without label skew: each client gets samples at random, in numbers that follow `law`.

    The data set, the clients, the seed, `shares` and `fixed_tests` are as in `dirichlet`.

    Args:
        law: sizes are in proportion to a draw from Dir(parameter) (`dirichlet`), to the exponential of a normal draw
            with standard deviation `parameter` (`lognormal`), or to rank ** -parameter with random ranks (`power`).
        parameter: parameter of the law.
        min_samples: number of samples that every client gets before the rest is divided by the law.

    Raises:
        UserError: there are too few samples.
    """

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        rest = len(y) - min_samples * clients
        if rest < 0:
            raise UserError(
                f"partition 'quantity': {clients} clients cannot have {min_samples} each of {len(y)} samples"
            )
        if law == "dirichlet":
            weights = rng.dirichlet(np.full(clients, parameter))
        elif law == "lognormal":
            weights = np.exp(parameter * rng.standard_normal(clients))
        else:
            weights = np.power(1.0 + rng.permutation(clients), -parameter, dtype=np.float64)
        further = [len(part) for part in divide(np.arange(rest), weights / weights.sum())]
        ends = np.cumsum(np.array(further) + min_samples)[:-1]
        return np.split(spread(rng.permutation(len(y)), kept), ends)

    return _split(dataset, seed, "quantity", shares, fixed_tests, deal)


@PARTITIONS.register("mix")
def mix(
    dataset: Dataset, *, clients: int, alpha: float, seed: int, iid: Share, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """A share `iid` of each class is divided equally, the rest by the shares of a draw from Dir(alpha)."""

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        lists: list[list[Indices]] = [[] for _ in range(clients)]
        for pool in _by_class(y, kept, rng):
            part = iid / clients + (1 - iid) * rng.dirichlet(np.full(clients, alpha))
            for client, samples in enumerate(divide(pool, part / part.sum())):
                lists[client].append(samples)
        return [np.concatenate(parts) for parts in lists]

    return _split(dataset, seed, "mix", shares, fixed_tests, deal)


@PARTITIONS.register("balanced_dirichlet")
def balanced_dirichlet(
    dataset: Dataset,
    *,
    clients: int,
    alpha: float,
    seed: int,
    shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:
    """Sizes differ by at most one; every client draws its label mix from Dir(alpha), as in FedDyn (Acar et al. 2021).

    Clients take samples in turn. The class of a sample is drawn from the client's mix over the classes that are left.
    """

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        pools = [pool.tolist() for pool in _by_class(y, kept, rng)]
        left = np.array([len(pool) for pool in pools])
        mixes = rng.dirichlet(np.full(len(pools), alpha), size=clients)
        lists: list[list[int]] = [[] for _ in range(clients)]
        order = np.concatenate([rng.permutation(clients) for _ in range(-(-len(y) // clients))])[: len(y)]
        for client, draw in zip(order.tolist(), rng.random(len(y)).tolist(), strict=True):
            weights = np.where(left > 0, np.maximum(mixes[client], np.finfo(float).tiny), 0.0)
            sums = np.cumsum(weights)
            label = int(np.searchsorted(sums, draw * sums[-1], side="right"))
            label = label if label < len(left) and left[label] else int(np.flatnonzero(left)[-1])  # rounding of sums
            left[label] -= 1
            lists[client].append(pools[label][left[label]])
        return [np.array(indices, np.int64) for indices in lists]

    return _split(dataset, seed, "balanced_dirichlet", shares, fixed_tests, deal)


@PARTITIONS.register("superclasses")
def superclasses(
    dataset: Dataset, *, clients: int, seed: int, k: PositiveInt = 1, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """k superclasses per client, each divided equally among the clients that have it (CIFAR-100 has 20).

    The superclasses are the groups of the data: all samples of a class belong to one group.

    Raises:
        UserError: the data have no superclasses, fewer than k, or too few clients for all of them.
    """
    groups, y_all = dataset.groups, dataset.y
    pairs = set() if groups is None else set(zip(y_all.tolist(), groups.tolist(), strict=True))
    if groups is None or len(pairs) != len(np.unique(y_all)):
        raise UserError(f"partition 'superclasses': {dataset.name} has no superclasses; cifar100 has them")
    count = len(dataset.group_names)
    if not k <= count <= k * clients:
        raise UserError(
            f"partition 'superclasses': k = {k} for each of {clients} clients does not fit {count} superclasses"
        )

    def deal(y: Indices, kept: Kept, rng: np.random.Generator) -> list[Indices]:
        return _k_each(groups[: len(y)], kept, rng, count, clients, k, np.array_split)

    return _split(dataset, seed, "superclasses", shares, fixed_tests, deal)


def _k_each(
    y: Indices, kept: Kept, rng: np.random.Generator, count: int, clients: int, k: int,
    cut: Callable[[Indices, int], list[Indices]],
) -> list[Indices]:  # fmt: skip
    """Let each client in turn choose the k classes that the fewest have so far, and cut each class for its clients.

    Args:
        y: `[n]` class or superclass of each sample, of `count`.
        cut: divides the samples of a class among a number of clients.
    """
    holders: list[list[int]] = [[] for _ in range(count)]
    for client in range(clients):
        order = sorted(rng.permutation(count).tolist(), key=lambda label: len(holders[label]))
        for label in order[:k]:
            holders[label].append(client)
    lists: list[list[Indices]] = [[] for _ in range(clients)]
    for pool, members in zip(_by_class(y, kept, rng, count), holders, strict=True):
        for client, part in zip(members, cut(pool, len(members)), strict=True):
            lists[client].append(part)
    return [np.concatenate(parts) for parts in lists]


def _by_class(y: Indices, kept: Kept, rng: np.random.Generator, classes: int | None = None) -> list[Indices]:
    """The samples of each class, shuffled, with those kept for tests spread evenly among them."""
    return [
        spread(rng.permutation(np.flatnonzero(y == label)), kept)
        for label in range(int(y.max()) + 1 if classes is None else classes)
    ]


def _split(dataset: Dataset, seed: int, name: str, shares: SplitShares | None, fixed_tests: bool, deal: Deal) -> Split:
    y = dealt(dataset, shares)
    kept = kept_of(y, shares, fixed_tests)
    lists = [np.sort(indices) for indices in deal(y, kept, generator(seed, "partition", name))]
    return finish(lists, shares, kept if fixed_tests else None, seed)
