"""A partition for runs beside code that drops short batches: every client trains on whole batches only."""

from dataclasses import replace

from bench.data import Dataset, Split
from bench.plugin import PARTITIONS
from datasets.dialects import dirichlet_pfllib


@PARTITIONS.register("whole_batches")
def whole_batches(
    dataset: Dataset, *, clients: int, alpha: float, seed: int, batch: int = 10, fixed_tests: bool = False
) -> Split:
    """PFLlib's Dirichlet split, of which each client trains on a multiple of `batch` samples."""
    split: Split = dirichlet_pfllib(dataset, clients=clients, alpha=alpha, seed=seed, fixed_tests=fixed_tests)
    return replace(split, train=[indices[: len(indices) // batch * batch] for indices in split.train])
