"""What other systems mean by the same words: presets of `dirichlet` and `natural` (docs/data.md says how they differ).

Held against split statistics that the systems' own code gave (tests/datasets/dialects.json).
"""

from pydantic import PositiveInt

from bench.data import Dataset
from bench.plugin import PARTITIONS
from datasets.natural import natural
from datasets.partitions import Split, dirichlet

_PFLLIB_BATCH, _PFLLIB_TEST = 10, 0.25


@PARTITIONS.register("dirichlet_pfllib")
def dirichlet_pfllib(dataset: Dataset, *, clients: int, alpha: float, seed: int, fixed_tests: bool = False) -> Split:
    """PFLlib's `dir`: training and test part merged, clients that are full get no more classes, a quarter for tests.

    Drawn again until every client has a batch of 10 in its test quarter, or half of the mean size if that is less.
    """
    least = int(min(_PFLLIB_BATCH / _PFLLIB_TEST, len(dataset.y) / clients / 2))
    shares = (1 - _PFLLIB_TEST, 0.0, _PFLLIB_TEST)
    found: Split = dirichlet(
        dataset, clients=clients, alpha=alpha, seed=seed, balanced=True, min_samples=least, shares=shares,
        fixed_tests=fixed_tests,
    )  # fmt: skip
    return found


@PARTITIONS.register("dirichlet_flower")
def dirichlet_flower(dataset: Dataset, *, clients: int, alpha: float, seed: int) -> Split:
    """Flower Datasets' DirichletPartitioner as it is by default: drawn again until every client has 10 samples.

    It divides the training part only and says nothing of tests; they are made as everywhere here.
    """
    found: Split = dirichlet(dataset, clients=clients, alpha=alpha, seed=seed, min_samples=10)
    return found


@PARTITIONS.register("natural_leaf")
def natural_leaf(
    dataset: Dataset, *, clients: int, seed: int, min_samples: PositiveInt = 1, fixed_tests: bool = False
) -> Split:
    """LEAF's `niid` split by samples: users with `min_samples` or more, 90 % of each for training, 10 % for tests."""
    shares = (0.9, 0.0, 0.1)
    found: Split = natural(
        dataset, clients=clients, seed=seed, min_samples=min_samples, shares=shares, fixed_tests=fixed_tests
    )
    return found
