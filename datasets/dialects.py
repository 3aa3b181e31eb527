"""Partitions as other systems define them: presets of `dirichlet` and `natural`, or rules of their own.

docs/data.md lists the differences. Tests compare them with split statistics produced by the systems' own code
(tests/datasets/dialects.json).
"""

import math
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from bench.data import EMPTY, Dataset, Indices, Split
from bench.errors import UserError
from bench.plugin import PARTITIONS
from bench.rng import generator
from datasets.natural import natural
from datasets.partitions import DividedSamples, SplitShares, check_classes, dirichlet

_QUARTER = (0.75, 0.0, 0.25)  # of each client's samples for tests, as in PFLlib and FL-bench
_PFLLIB_BATCH = 10
_PFL_PATIENCE, _PFL_EVENED = 20, 0.02


@PARTITIONS.register("dirichlet_pfllib")
def dirichlet_pfllib(dataset: Dataset, *, clients: int, alpha: float, seed: int, fixed_tests: bool = False) -> Split:
    """PFLlib's `dir`: training and test part merged, full clients get no further classes, a quarter for tests.

    The draw is repeated until every client has at least 40 samples, which is a batch of 10 in its test quarter, or half
    of the mean number of samples per client if that is less.
    """
    split: Split = dirichlet(
        dataset, clients=clients, alpha=alpha, seed=seed, balanced=True, min_samples=_least(dataset, clients),
        shares=_QUARTER, fixed_tests=fixed_tests,
    )  # fmt: skip
    return split


@PARTITIONS.register("pathological_pfllib")
def pathological_pfllib(
    dataset: Dataset, *, clients: int, seed: int, k: PositiveInt, balanced: bool = False, fixed_tests: bool = False
) -> Split:
    """PFLlib's `pat`: `k` classes per client, training and test part merged, a quarter of each client's for tests.

    The classes are dealt out in their order: each to the first clients that have fewer than `k`, as many as an even
    deal needs. So clients in a row have the same classes. Of a class each of these clients gets a stretch in the data's
    order: of equal lengths if `balanced`, else of lengths drawn evenly from a tenth of the equal one up to it, and the
    last of these clients gets the rest.

    Raises:
        UserError: there are fewer than `k` classes, or too few samples of a class for its clients.
    """
    check_classes(dataset, "pathological_pfllib", k)
    samples = DividedSamples.of(dataset, seed, _QUARTER, fixed_tests)
    pools = [samples.of_class(label) for label in range(dataset.num_classes)]
    rng = generator(seed, "partition", "pfllib pathological")
    least = _least(dataset, clients) / dataset.num_classes
    return samples.split(_class_by_class(pools, rng, clients, k, balanced, least))


def _least(dataset: Dataset, clients: int) -> int:
    """PFLlib's smallest client: a batch in its test quarter, or half of the mean number of samples if that is less."""
    return int(min(_PFLLIB_BATCH / _QUARTER[2], len(dataset.y) / clients / 2))


def _class_by_class(
    pools: list[Indices], rng: Any, clients: int, k: int, balanced: bool, least: float
) -> list[Indices]:
    """Deal out the classes in their order; no drawn stretch is shorter than `least`.

    Raises:
        UserError: a class has too few samples.
    """
    left = np.full(clients, k)
    lists = [[EMPTY] for _ in range(clients)]
    for label, pool in enumerate(pools):
        chosen = np.flatnonzero(left > 0)[: math.ceil(clients / len(pools) * k)]
        if not len(chosen):
            break
        equal = len(pool) / len(chosen)
        low, high = int(max(equal / 10, least)), int(equal)
        if low >= high and not balanced:
            raise UserError(
                f"partition 'pathological_pfllib': {len(pool)} samples of class {label} are too few for "
                f"{len(chosen)} clients; take fewer clients or `balanced: true`"
            )
        sizes = np.full(len(chosen) - 1, high) if balanced else rng.integers(low, high, len(chosen) - 1)
        for client, stretch in zip(chosen, np.split(pool, np.cumsum(sizes)), strict=True):
            lists[client].append(stretch)
        left[chosen] -= 1
    return [np.concatenate(stretches) for stretches in lists]


@PARTITIONS.register("dirichlet_flbench")
def dirichlet_flbench(dataset: Dataset, *, clients: int, alpha: float, seed: int, fixed_tests: bool = False) -> Split:
    """FL-bench's default: training and test part merged, a quarter of each client's samples for tests.

    The draw is repeated until every client has at least 10 samples. Unlike in PFLlib, full clients get further classes.
    """
    split: Split = dirichlet(
        dataset, clients=clients, alpha=alpha, seed=seed, min_samples=10, shares=_QUARTER, fixed_tests=fixed_tests
    )
    return split


@PARTITIONS.register("dirichlet_flower")
def dirichlet_flower(dataset: Dataset, *, clients: int, alpha: float, seed: int) -> Split:
    """Flower Datasets' DirichletPartitioner with its defaults: drawn again until every client has 10 samples.

    It divides the training part only and does not define tests, so the harness makes them as for other partitions.
    """
    split: Split = dirichlet(dataset, clients=clients, alpha=alpha, seed=seed, min_samples=10)
    return split


@PARTITIONS.register("pathological_flower")
def pathological_flower(
    dataset: Dataset, *, clients: int, seed: int, k: PositiveInt, shares: SplitShares | None = None,
    fixed_tests: bool = False,
) -> Split:  # fmt: skip
    """Flower Datasets' PathologicalPartitioner with its defaults: `k` classes per client, drawn by every client alone.

    A class is cut into equal stretches, in the data's order, for the clients that drew it; a class that nobody drew is
    not used. The partitioner does not define tests: `shares` cuts them from each client's samples, as Flower's FedRep
    does with 83 and 17 %.

    Raises:
        UserError: there are fewer than `k` classes, or fewer samples of a class than clients that drew it.
    """
    check_classes(dataset, "pathological_flower", k)
    samples = DividedSamples.of(dataset, seed, shares, fixed_tests)
    pools = [samples.of_class(label) for label in range(dataset.num_classes)]
    return samples.split(_classes_drawn(pools, generator(seed, "partition", "flower pathological"), clients, k))


def _classes_drawn(pools: list[Indices], rng: Any, clients: int, k: int) -> list[Indices]:
    """Let every client draw `k` classes, and cut each class into equal stretches for those that drew it.

    Raises:
        UserError: a class has fewer samples than clients.
    """
    chosen = [rng.choice(len(pools), size=k, replace=False) for _ in range(clients)]
    lists: list[list[Indices]] = [[EMPTY] for _ in range(clients)]
    for label, pool in enumerate(pools):
        holders = [client for client in range(clients) if label in chosen[client]]
        if len(holders) > len(pool):
            raise UserError(
                f"partition 'pathological_flower': {len(pool)} samples of class {label} are too few for the "
                f"{len(holders)} clients that drew it; take fewer clients or a smaller k"
            )
        for client, stretch in zip(holders, np.array_split(pool, max(1, len(holders))), strict=False):
            lists[client].append(stretch)
    return [np.concatenate(stretches) for stretches in lists]


@PARTITIONS.register("dirichlet_pfl_research")
def dirichlet_pfl_research(
    dataset: Dataset, *, clients: int, alpha: float, seed: int, samples: PositiveInt = 50
) -> Split:
    """pfl-research's users: one after the other draws a label mix from Dir(alpha) and takes `samples` samples from it.

    It divides the training part only; the remaining samples are not used. The harness makes the tests as for other
    partitions.

    Raises:
        UserError: the training part has too few samples.
    """
    y = dataset.y[: dataset.n_train]
    if clients * samples > len(y):
        raise UserError(
            f"partition 'dirichlet_pfl_research': {clients} clients of {samples} samples need {clients * samples}, but "
            f"{dataset.name} has only {len(y)} for training; set fewer `clients` or `samples`"
        )
    return Split(_one_after_the_other(y, generator(seed, "partition", "pfl-research"), clients, alpha, samples))


def _one_after_the_other(y: Indices, rng: Any, clients: int, alpha: float, samples: int) -> list[Indices]:
    """Draw each client's samples; a sample's class is drawn from the client's mix, and a used-up class yields nothing.

    Whenever a client has made another 20 * `samples` draws and is still not full, its mix is made more even. As in
    pfl-research, each such step but the first starts with a weight of one for the last class.
    """
    pools = [rng.permutation(np.flatnonzero(y == label)).tolist() for label in range(int(y.max()) + 1)]
    lists = []
    for _ in range(clients):
        mix = rng.dirichlet(np.full(len(pools), alpha))
        sums = np.cumsum(mix)
        sums[-1] = 1.0
        drawn: list[int] = []
        draws = 0
        while len(drawn) < samples:
            pool = pools[int(np.argmax(rng.random() < sums))]
            if pool:
                drawn.append(pool.pop())
            draws += 1
            if draws % (_PFL_PATIENCE * samples) == 0:
                mix = (mix + _PFL_EVENED) / (mix + _PFL_EVENED).sum()
                sums = np.cumsum(mix)
                mix[-1] = 1.0
        lists.append(np.sort(np.array(drawn, np.int64)))
    return lists


@PARTITIONS.register("natural_leaf")
def natural_leaf(
    dataset: Dataset,
    *,
    clients: int | Literal["all"],
    seed: int,
    min_samples: PositiveInt = 1,
    fixed_tests: bool = False,
    redraw: bool = False,
) -> Split:
    """LEAF's `niid` split by samples: users with `min_samples` or more; 90 % of each user trains, 10 % is for tests."""
    split: Split = natural(
        dataset, clients=clients, seed=seed, min_samples=min_samples, shares=(0.9, 0.0, 0.1), fixed_tests=fixed_tests,
        redraw=redraw,
    )  # fmt: skip
    return split
