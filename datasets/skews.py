"""Further partitions: shards, few classes with Dirichlet shares, unequal sizes, mixtures, equal sizes, superclasses.

Each divides the samples of the official training part or, with `shares`, all samples, and then `cut`s each client's.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from bench.data import Dataset, Indices, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator
from datasets.partitions import DividedSamples, Share, SplitShares, divide


@PARTITIONS.register("shards")
def shards(
    dataset: Dataset, *, clients: int, seed: int, k: PositiveInt = 2, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """Samples sorted by label and cut into shards; each client gets k at random (McMahan et al. 2017: k = 2).

    Raises:
        UserError: there are fewer samples than shards.
    """
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    if (n := len(samples.y)) < k * clients:
        raise UserError(f"partition 'shards': {dataset.name} has {n} samples, too few for {k * clients} shards")
    rng = generator(seed, "partition", "shards")
    parts = np.array_split(np.concatenate(samples.by_class(rng)), k * clients)
    order = rng.permutation(k * clients).reshape(clients, k)
    return samples.split([np.concatenate([parts[shard] for shard in numbers]) for numbers in order])


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
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    return samples.split(_k_each(samples, "exdir", "classes", dataset.num_classes, clients, k, alpha))


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

    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    rest = len(samples.y) - min_samples * clients
    if rest < 0:
        raise UserError(
            f"partition 'quantity': {clients} clients cannot have {min_samples} each of {len(samples.y)} samples"
        )
    rng = generator(seed, "partition", "quantity")
    if law == "dirichlet":
        weights = rng.dirichlet(np.full(clients, parameter))
    elif law == "lognormal":
        weights = np.exp(parameter * rng.standard_normal(clients))
    else:
        weights = np.power(1.0 + rng.permutation(clients), -parameter, dtype=np.float64)
    further = [len(part) for part in divide(np.arange(rest), weights / weights.sum())]
    ends = np.cumsum(np.array(further) + min_samples)[:-1]
    return samples.split(np.split(samples.spread(rng.permutation(len(samples.y))), ends))


@PARTITIONS.register("mix")
def mix(
    dataset: Dataset, *, clients: int, alpha: float, seed: int, iid: Share, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """A share `iid` of each class is divided equally, the rest by the shares of a draw from Dir(alpha)."""
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    rng = generator(seed, "partition", "mix")
    stretches = []
    for pool in samples.by_class(rng):
        part = iid / clients + (1 - iid) * rng.dirichlet(np.full(clients, alpha))
        stretches.append(divide(pool, part / part.sum()))
    return samples.split([np.concatenate(parts) for parts in zip(*stretches, strict=True)])


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
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    rng = generator(seed, "partition", "balanced_dirichlet")
    pools = [pool.tolist() for pool in samples.by_class(rng)]
    left = np.array([len(pool) for pool in pools])
    mixes = rng.dirichlet(np.full(len(pools), alpha), size=clients)
    lists: list[list[int]] = [[] for _ in range(clients)]
    n = len(samples.y)
    order = np.concatenate([rng.permutation(clients) for _ in range(-(-n // clients))])[:n]
    for client, draw in zip(order.tolist(), rng.random(n).tolist(), strict=True):
        weights = np.where(left > 0, np.maximum(mixes[client], np.finfo(float).tiny), 0.0)
        sums = np.cumsum(weights)
        label = int(np.searchsorted(sums, draw * sums[-1], side="right"))
        label = label if label < len(left) and left[label] else int(np.flatnonzero(left)[-1])  # rounding of sums
        left[label] -= 1
        lists[client].append(pools[label][left[label]])
    return samples.split([np.array(indices, np.int64) for indices in lists])


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
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    of_groups = replace(samples, y=groups[: len(samples.y)])
    return samples.split(_k_each(of_groups, "superclasses", "superclasses", len(dataset.group_names), clients, k))


def _k_each(
    samples: DividedSamples, name: str, what: str, count: int, clients: int, k: int, alpha: float | None = None
) -> list[Indices]:
    """Let each client in turn choose the k classes that the fewest have so far, and cut each class for its clients.

    Args:
        samples: whose labels are the classes or superclasses.
        name: of the partition.
        what: a word for the classes, of which there are `count`.
        alpha: of the Dirichlet draw of the shares in which a class is cut; None: equal ones.

    Raises:
        UserError: there are fewer than k classes, or too few clients for all.
    """
    if not k <= count <= k * clients:
        raise UserError(f"partition {name!r}: k = {k} {what} for each of {clients} clients does not fit {count} {what}")
    rng = generator(samples.seed, "partition", name)
    holders: list[list[int]] = [[] for _ in range(count)]
    for client in range(clients):
        order = sorted(rng.permutation(count).tolist(), key=lambda label: len(holders[label]))
        for label in order[:k]:
            holders[label].append(client)
    lists: list[list[Indices]] = [[] for _ in range(clients)]
    pools = [samples.of_class(label, rng) for label in range(count)]
    for pool, members in zip(pools, holders, strict=True):
        n = len(members)
        parts = np.array_split(pool, n) if alpha is None else divide(pool, rng.dirichlet(np.full(n, alpha)))
        for client, part in zip(members, parts, strict=True):
            lists[client].append(part)
    return [np.concatenate(parts) for parts in lists]
