"""The local test sets and validation shares that the harness draws for each client separately."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bench.data import EMPTY, Dataset, Indices
from bench.rng import generator


def local_tests(dataset: Dataset, train: Sequence[Indices], seed: int, floor: bool) -> list[Indices]:
    """Draw local test sets from the official test part with each client's label mix, without replacement.

    Client i is entitled to n_ij * n_test / n_train samples of class j. It gets the rounded sum of these numbers,
    distributed over the classes by largest remainders, so that each class differs from its number by less than one.
    With `floor` each number is rounded down instead, as in the code of SCD's authors; with many classes that gives far
    fewer samples, and some classes are in no test. A client entitled to less than half a sample in all has no test and
    is left out of averages over clients.
    """
    n_test = len(dataset.y) - dataset.n_train
    y_test = dataset.y[dataset.n_train :]
    pools = [dataset.n_train + np.flatnonzero(y_test == label) for label in range(dataset.num_classes)]
    due = label_counts(dataset, train) * n_test
    tests = []
    for client, row in enumerate(due):
        if floor:
            counts = row // dataset.n_train
        else:
            total = int(row.sum() / dataset.n_train + 0.5)
            counts = _largest_remainders(row, dataset.n_train, total, generator(seed, "partition", "test ties", client))
        rng = generator(seed, "partition", "test", client)
        drawn = [rng.permutation(pool)[:count] for pool, count in zip(pools, counts, strict=True) if count]
        tests.append(np.sort(np.concatenate([*drawn, EMPTY])))
    return tests


def _largest_remainders(parts: Indices, unit: int, total: int, rng: np.random.Generator) -> Indices:
    """Integers that add up to `total`, each the floor of `parts / unit` or one more; ties are broken at random."""
    ties = rng.permutation(len(parts))
    whole, remainder = np.divmod(parts, unit)
    order = np.lexsort((ties, -remainder))
    whole[order[: total - whole.sum()]] += 1
    return whole


def split_validation(y: Indices, indices: Indices, share: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Split one client's samples into training and validation, each class in proportion (largest remainders).

    At least one sample stays for training, so a client with one sample has no validation.
    """
    size = max(0, min(round(share * len(indices)), len(indices) - 1))
    if size == 0:
        return indices, indices[:0]
    rng = generator(seed, "partition", "validation", client)
    shuffled = rng.permutation(len(indices))
    labels, counts = np.unique(y[indices], return_counts=True)
    whole = _largest_remainders(counts * size, len(indices), size, rng)
    held = np.zeros(len(indices), dtype=bool)
    for label, count in zip(labels, whole, strict=True):
        held[shuffled[y[indices[shuffled]] == label][:count]] = True
    return indices[~held], indices[held]


def label_counts(dataset: Dataset, lists: Sequence[Indices]) -> npt.NDArray[np.int64]:
    """Number of samples of each class in each list, `[clients, classes]`."""
    return np.stack([np.bincount(dataset.y[indices], minlength=dataset.num_classes) for indices in lists])
