"""Figures that settings and data give by themselves, before torch is imported and anything is counted."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.config.validation import complete
from bench.data import Dataset, Partition, TokenShape
from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition
from bench.plugin import DATASETS
from bench.settings import Settings


class DataSize(NamedTuple):
    """Size of a data set: shape of a sample, numbers of classes, training and test samples, bytes of a number."""

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    itemsize: int = 1


class ClientShares(NamedTuple):
    """Mean numbers of samples of a client that has some, the common test samples, and the number of such clients."""

    clients: int
    train: int
    validation: int
    test: int
    common: int


_SIZES = {
    "mnist": DataSize((1, 28, 28), 10, 60_000, 10_000),
    "cifar10": DataSize((3, 32, 32), 10, 50_000, 10_000),
    "cifar100": DataSize((3, 32, 32), 100, 50_000, 10_000),
    "emnist": DataSize((1, 28, 28), 47, 112_800, 18_800),
    "organamnist": DataSize((1, 28, 28), 11, 41_052, 17_778),
    "fashion_mnist": DataSize((1, 28, 28), 10, 60_000, 10_000),
    "tinyimagenet": DataSize((3, 64, 64), 200, 100_000, 10_000),
    "flowers102": DataSize((3, 64, 64), 102, 2_040, 6_149),
    "ag_news": DataSize(TokenShape(64, 20_000), 4, 120_000, 7_600, 4),
    "inaturalist2017": DataSize((3, 64, 64), 13, 506_378, 0),
}
"""Sizes, with default options, of data sets whose files may not be here yet."""

_OF_A_SAMPLE = ("mean", "std", "resize", "size", "length", "vocabulary")
"""Options of these data sets that change samples and not how many there are."""


def data_size(settings: Settings, data_root: Path) -> tuple[DataSize, Dataset] | None:
    """The size of a cell's data set, and the set or, where it is not here, one of this size without numbers."""
    try:
        dataset = load_dataset(settings, data_root)
    except UserError:
        size = _declared_size(settings)
        return size and (size, blank(size, size.train, size.test))
    return size_of(dataset), dataset


def size_of(dataset: Dataset) -> DataSize:
    """The size of a data set that is here."""
    tests = len(dataset.y) - dataset.n_train
    return DataSize(dataset.shape, dataset.num_classes, dataset.n_train, tests, dataset.x.itemsize)


def _declared_size(settings: Settings) -> DataSize | None:
    """The size that a data set has by its name and, where its samples are tokens, its options."""
    size = _SIZES.get(settings.dataset)
    if size is None or not isinstance(size.shape, TokenShape):
        return size
    options = settings.dataset_options
    length = int(options.get("length") or size.shape.length)
    return size._replace(shape=TokenShape(length, int(options.get("vocabulary") or size.shape.vocabulary)))


def outlined_shares(settings: Settings, data_root: Path) -> ClientShares | None:
    """The mean client of a cell as far as it is known without torch, for which some data sets are read by torchvision;
    None: it is not."""
    defaults, _ = complete(DATASETS, settings.dataset, {})
    counted = {name: value for name, value in settings.dataset_options.items() if name not in _OF_A_SAMPLE}
    size = _SIZES.get(settings.dataset) if counted.items() <= defaults.items() else None
    try:
        dataset = blank(size, size.train, size.test) if size else load_dataset(settings, data_root)
        return shares(settings, dataset)
    except UserError:  # said where the cells are planned
        return None


def blank(size: DataSize, train: int, test: int = 0) -> Dataset:
    """Samples that take no memory, with the classes in turn as labels."""
    samples = train + test
    y = np.arange(samples) % size.classes
    tokens = isinstance(size.shape, TokenShape)
    shape = size.shape[:1] if tokens else size.shape
    zero = np.zeros(1, np.int32 if tokens else np.uint8)
    x = np.lib.stride_tricks.as_strided(zero, (samples, *shape), (0,) * (len(shape) + 1))
    if isinstance(size.shape, TokenShape):
        return Dataset("blank", x, y, train, size.classes, (), (), "", vocabulary=size.shape.vocabulary)
    return Dataset("blank", x, y, train, size.classes, (0.5,) * shape[0], (0.25,) * shape[0], "")


def shares(settings: Settings, dataset: Dataset) -> ClientShares:
    """Return the mean client of a cell, from one partition for all cells that differ in seed and alpha only.

    Raises:
        UserError: the data set cannot be divided so.
    """
    key = settings.model_dump_json(include=_DIVIDED_BY), dataset.checksum, dataset.n_train, len(dataset.y)
    if key not in _SHARES:
        _SHARES[key] = _mean_client(load_partition(settings, dataset))
    return _SHARES[key]


_DIVIDED_BY = {
    "dataset",
    "dataset_options",
    "partition",
    "partition_options",
    "clients",
    "protocol",
    "validation_share",
}
_SHARES: dict[tuple[str, str, int, int], ClientShares] = {}


def _mean_client(partition: Partition) -> ClientShares:
    clients = [i for i, samples in enumerate(partition.train) if len(samples)]
    train, validation, test = (
        math.ceil(sum(len(part[i]) for i in clients) / max(1, len(clients)))
        for part in (partition.train, partition.validation, partition.test)
    )
    return ClientShares(len(clients), train, validation, test, len(partition.global_test))


def that_train(settings: Settings, clients: int) -> int:
    """The number of clients that train, of so many that have samples: `new_clients` are held out."""
    return max(1, clients - settings.new_clients)


def steps_of_a_training(settings: Settings, samples: int) -> int:
    """Steps that a client of so many samples takes when it trains a model once, as the settings say."""
    return settings.epochs * math.ceil(samples / settings.batch_size) if settings.steps is None else settings.steps
