"""Whom COMET's Table III selects: clients drawn uniformly, or by p_k = n_k / n without replacement as the paper says.

The partition is that of the grid comet_table3, which needs only the labels of CIFAR-10: 6,000 of each class. Small are
the clients with 20 samples in all: the Dirichlet distribution left them with fewer, and the grid fills them up.
Prints a Markdown table; docs/methods/comet.md shows it. Takes seconds.
"""

import numpy as np

from bench.config.grid import load_grid
from bench.data import Dataset, Partition
from bench.federation.cell_data import load_partition
from bench.method import SELECTIONS
from bench.rng import generator
from bench.settings import Settings

SMALL = 20


def cells() -> list[Settings]:
    """FedAvg's cells of the grid in which 10 clients take part, one for each seed."""
    return [cell for cell in load_grid("comet_table3", []).cells if (cell.name, cell.participation) == ("fedavg", 0.1)]


def labels() -> Dataset:
    """CIFAR-10 without its pictures."""
    y = np.concatenate([np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000)])
    return Dataset("cifar10", np.zeros((len(y), 1), np.float32), y, 50_000, 10, (0.0,), (1.0,), "labels alone")


def small_clients(partition: Partition) -> set[int]:
    """Whose lists for training, validation and tests have 20 samples together, at most."""
    lists = zip(partition.train, partition.validation, partition.test, strict=True)
    return {i for i, own in enumerate(lists) if sum(map(len, own)) <= SMALL}


def share_of_small(cell: Settings, partition: Partition, selection: str) -> float:
    """Which part of all clients selected during the rounds of a cell are small."""
    sizes, small = [len(one) for one in partition.train], small_clients(partition)
    count, ids, select = round(cell.participation * cell.clients), list(range(cell.clients)), SELECTIONS.get(selection)
    drawn = [
        i
        for version in range(cell.rounds)
        for i in select(ids, sizes, count, version, generator("selection", cell.seed, version))
    ]
    return sum(i in small for i in drawn) / len(drawn)


def main() -> None:
    """Print the table."""
    data = labels()
    print("| seed | small clients of 100 | training samples they hold | selected, uniform | selected, by_size |")
    print("|---|---:|---:|---:|---:|")
    for cell in cells():
        partition = load_partition(cell, data)
        sizes, small = np.array([len(one) for one in partition.train]), small_clients(partition)
        held = sizes[sorted(small)].sum() / sizes.sum()
        shares = [share_of_small(cell, partition, name) for name in ("uniform", "by_size")]
        print(f"| {cell.seed} | {len(small)} | {held:.2%} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")


if __name__ == "__main__":
    main()
