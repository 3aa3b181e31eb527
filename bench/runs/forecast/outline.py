"""Figures that settings and data give by themselves, without torch: samples, clients, steps."""

import functools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.config.validation import complete
from bench.data import Dataset, Partition, TokenShape
from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition
from bench.plugin import DATASETS, METHODS, SERVER_RULES
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


class KnownSet(NamedTuple):
    """The size of a data set whose files may not be here yet, and the first of its files, below the data root."""

    size: DataSize
    file: str = ""


_SETS = {
    "digits": KnownSet(DataSize((1, 8, 8), 10, 1_346, 451)),
    "mnist": KnownSet(DataSize((1, 28, 28), 10, 60_000, 10_000), "MNIST/raw/train-images-idx3-ubyte"),
    "cifar10": KnownSet(DataSize((3, 32, 32), 10, 50_000, 10_000), "cifar-10-batches-py/data_batch_1"),
    "cifar100": KnownSet(DataSize((3, 32, 32), 100, 50_000, 10_000), "cifar-100-python/train"),
    "emnist": KnownSet(
        DataSize((1, 28, 28), 47, 112_800, 18_800), "EMNIST/raw/emnist-balanced-train-images-idx3-ubyte"
    ),
    "organamnist": KnownSet(DataSize((1, 28, 28), 11, 41_052, 17_778), "organamnist.npz"),
    "fashion_mnist": KnownSet(DataSize((1, 28, 28), 10, 60_000, 10_000), "FashionMNIST/raw/train-images-idx3-ubyte"),
    "tinyimagenet": KnownSet(DataSize((3, 64, 64), 200, 100_000, 10_000), "tiny-imagenet-200"),
    "flowers102": KnownSet(DataSize((3, 64, 64), 102, 2_040, 6_149), "flowers-102"),
    "ag_news": KnownSet(DataSize(TokenShape(64, 20_000), 4, 120_000, 7_600, 4), "ag_news_csv/train.csv"),
    "inaturalist2017": KnownSet(DataSize((3, 64, 64), 13, 506_378, 0), "2017"),
}
"""Data sets with default options. `tests/runs/test_estimate.py` compares `digits` with its loader, and
the files of the others."""

_OF_A_SAMPLE = ("mean", "std", "resize", "size", "length", "vocabulary")
"""Options of these data sets that change samples and not how many there are."""


def known_set(settings: Settings) -> KnownSet | None:
    """A cell's data set as it is known without reading it; None if options of it change how many samples there are."""
    known = _SETS.get(settings.dataset)
    if known is None:
        return None
    options, defaults = settings.dataset_options, complete(DATASETS, settings.dataset, {})[0]
    if not {name: value for name, value in options.items() if name not in _OF_A_SAMPLE}.items() <= defaults.items():
        return None
    shape = known.size.shape
    if isinstance(shape, TokenShape):
        length, vocabulary = options.get("length") or shape.length, options.get("vocabulary") or shape.vocabulary
        shape = shape._replace(length=int(length), vocabulary=int(vocabulary))
    elif side := options.get("resize") or options.get("size"):
        shape = (shape[0], int(side), int(side))
    return known._replace(size=known.size._replace(shape=shape))


def missing_file(name: str, data_root: Path) -> str:
    """A sentence on a known data set that is not under the data root; empty if it is there."""
    file = _SETS[name].file if name in _SETS else ""
    if not file or (data_root / file).exists():
        return ""
    advice = "add `--download` to fetch it, or set `--data-root` to the folder that holds the data sets"
    return f"{name}: {data_root / file} is missing; {advice}"


def data_size(settings: Settings, data_root: Path) -> DataSize | None:
    """The size of a cell's data set; None if it is neither known nor here."""
    if known := known_set(settings):
        return known.size
    try:
        dataset = load_dataset(settings, data_root)
    except UserError:  # said where the cells are planned
        return None
    tests = len(dataset.y) - dataset.n_train
    return DataSize(dataset.shape, dataset.num_classes, dataset.n_train, tests, dataset.x.itemsize)


def outlined_shares(settings: Settings, data_root: Path) -> ClientShares | None:
    """The mean client of a cell, from one partition for all cells that differ in seed and alpha only; None: its data
    are neither known nor here, or cannot be divided so."""
    known = known_set(settings)
    key = settings.model_dump_json(include=_DIVIDED_BY)
    try:
        dataset = _blank(known.size) if known else load_dataset(settings, data_root)
        where = key, dataset.checksum, dataset.n_train, len(dataset.y)
        if where not in _SHARES:
            _SHARES[where] = _mean_client(load_partition(settings, dataset))
    except UserError:  # said where the cells are planned
        return None
    return _SHARES[where]


@functools.cache
def _blank(size: DataSize) -> Dataset:
    """Samples that take no memory, with the classes in turn as labels."""
    samples, tokens = size.train + size.test, isinstance(size.shape, TokenShape)
    shape = size.shape[:1] if tokens else size.shape
    x = np.broadcast_to(np.zeros(1, np.int32 if tokens else np.uint8), (samples, *shape))
    y, of_channels = np.arange(samples) % size.classes, 0 if tokens else shape[0]
    vocabulary = size.shape.vocabulary if isinstance(size.shape, TokenShape) else 0
    mean, std = (0.5,) * of_channels, (0.25,) * of_channels
    return Dataset("blank", x, y, size.train, size.classes, mean, std, "", vocabulary=vocabulary)


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


def selected(settings: Settings, clients: int) -> int:
    """The number of clients that train in a round, of so many."""
    method = METHODS.declaration(settings.method)(METHODS.options(settings.method)(**settings.hp))
    if settings.server is not None:
        name, options = settings.server.name, settings.server.options
        method.rule = SERVER_RULES.declaration(name)(SERVER_RULES.options(name)(**options))
    if messages := getattr(method.trigger, "k", 0):  # an asynchronous server: so many close a version
        return min(int(messages), clients)
    return clients if method.everyone or settings.unselected != "idle" else settings.selected(clients)


TRAININGS: dict[str, tuple[str | int, ...]] = {
    **dict.fromkeys(("ditto", "fedthe", "floco", "floco_plus", "scd"), ("epochs", "personal_epochs")),
    **dict.fromkeys(("fedala", "fedem", "pfedfda", "pgfed", "pgfed_ce", "pgfedmo"), ("epochs", 1)),
    **dict.fromkeys(("feddpa", "perada", "pflda"), ("epochs", "epochs")),
    **dict.fromkeys(("dsfl", "ktpfl"), ("epochs", "distil_epochs")),
    **dict.fromkeys(("fedpac", "flute"), ("epochs", "head_epochs")),
    "fedah": ("head_epochs", "body_epochs", 1),
    "fedas": ("epochs", "align_epochs", 1),
    "fedmd": ("epochs", "digest_epochs"),
    "fedrep": ("head_epochs", "body_epochs"),
    "pefll": ("epochs", 2),
}
"""The trainings of a client's round of those methods whose clients do not train one model once: of each the
hyperparameter with its epochs, which None leaves to the cell, or their number. A method that is not here has one
training, as the settings say. Not in the method's file, of which each line counts in its cells' ids."""


KEPT: dict[str, int] = {
    **dict.fromkeys(
        (
            "apfl", "apple", "cfl", "elastic", "fedbabu", "fedcac", "feddyn", "fedfomo", "fedgc", "fedgh", "fedkd",
            "fedper", "fedphp", "fedselect", "flash", "fml", "lgfedavg", "pfedhn", "pfedme", "plga", "spfl_w",
            "superfed",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "fedamp", "fedcross", "feddbe", "flexlora", "flora", "gpfl", "pefll", "pfedfda", "pfedgraph", "pfedla",
            "pflda", "scaffold", "spfl",
        ),
        3,
    ),
    **dict.fromkeys(("fedadmm", "fedmtl", "pgfed", "pgfed_ce", "pgfedmo"), 4),
    **dict.fromkeys(("fedcp", "fedthe"), 5),
    "fedmrl": 6,
    "fedem": 8,
}  # fmt: skip
"""Models that a client of a method holds between rounds, or half of those at the peak of a round where that is more:
of the methods that hold more than one for each training. They were counted in rounds of nine clients."""
MIXES_ALL = {"apple"}
"""Methods whose clients get the models of all clients in a round, and weigh them in a copy."""

SPECTRAL = {"scd": 2}
"""Models that a step holds beside its own: a spectrum, its slopes, and the one that they are compared with."""


def trainings(settings: Settings) -> int:
    """The number of trainings of a client's round, each of one model."""
    return len(TRAININGS.get(settings.method, ("epochs",)))


def client_steps(settings: Settings, samples: int) -> int:
    """Steps that a client of so many samples takes in a round in which it is selected."""
    hp = METHODS.options(settings.method)(**settings.hp).model_dump()
    lengths = [hp.get(n) if isinstance(n, str) else n for n in TRAININGS.get(settings.method, ("epochs",))]
    of_an_epoch = math.ceil(samples / settings.batch_size)
    usual = settings.epochs * of_an_epoch if settings.steps is None else settings.steps
    return sum(usual if epochs is None else epochs * of_an_epoch for epochs in lengths)
