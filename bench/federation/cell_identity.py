"""The ids of cells under one data root: `bench.config.identity` with what only the samples themselves can say.

A file that an option names is known by its content before it is read, and most loaders compare checksums. What the
user's own data sets and partitions make is known from nothing but the result, and so are files under the data root that
have no published checksum. So are weights that a model's constructor reads.
"""

import json
from pathlib import Path

from bench.config.digests import digest, is_own
from bench.config.identity import UNVERIFIED, cell_id, declared_checksum
from bench.data import Dataset
from bench.errors import UserError
from bench.federation.cell_data import data_of, load_dataset, load_partition, read_data
from bench.plugin import DATASETS, MODELS, PARTITIONS
from bench.settings import Settings

DATA_FIELDS = (
    "dataset",
    "dataset_options",
    "partition",
    "partition_options",
    "shifts",
    "timeline",
    "attack",
    "normalise",
    "new_clients",
    "clients",
    "alpha",
    "seed",
    "partition_seed",
    "protocol",
    "validation_share",
)
"""Settings on which a cell's samples and its clients depend."""


class Identities:
    """Ids of cells under one data root. Data that only reading tells are read once, when a cell first needs them.

    Attributes:
        constructed: digests of what the constructors of models read, by the arguments of `read_by_constructor`.
    """

    def __init__(self, data_root: Path, *, download: bool = False) -> None:
        self._data_root = data_root
        self._download = download
        self._samples: dict[tuple[str, str], str] = {}  # by name and options of a data set
        self._partitions: dict[str, str] = {}
        self.constructed: dict[tuple[str, tuple[int, ...], int, str], str] = {}

    def of(self, settings: Settings, partition_hash: str = "") -> str:
        """Identity of a cell, 16 hex digits.

        Args:
            settings: the cell's.
            partition_hash: of its partition before shifts, if that is known, so that it is not made again.

        Raises:
            UserError: its data are missing or damaged, or cannot be divided as asked for.
        """
        return cell_id(settings, " ".join([declared_checksum(settings), *self.content(settings, partition_hash)]))

    def content(self, settings: Settings, partition_hash: str = "") -> list[str]:
        """Texts that distinguish what a cell reads where its settings and declared checksum do not; else empty."""
        texts = [
            f"{place} {self._samples_of(name, options)}"
            for place, (name, options) in zip(("clients", "public"), data_of(settings), strict=False)
            if is_own(DATASETS, name) or name in UNVERIFIED
        ]
        if is_own(PARTITIONS, settings.partition):
            texts.append(partition_hash or self._partition_of(settings))
        return texts + self.weights(settings)

    def weights(self, settings: Settings) -> list[str]:
        """Texts with what the constructors of the user's or another package's models read."""
        texts = []
        for name in dict.fromkeys((settings.model, *settings.architectures)):
            options = settings.model_options if name == settings.model else {}
            if not (is_own(MODELS, name) or (MODELS.package_of(name) and options)):  # timm's may name a file
                continue
            dataset = load_dataset(settings, self._data_root, download=self._download)
            at = name, dataset.shape, dataset.num_classes, json.dumps(options, sort_keys=True)
            if at not in self.constructed:
                self.constructed[at] = read_by_constructor(*at)
            if self.constructed[at]:
                texts.append(f"weights of {name} {self.constructed[at]}")
        return texts

    def _samples_of(self, name: str, options: str) -> str:
        if (name, options) not in self._samples:
            self._samples[name, options] = _checksum(read_data(name, options, self._data_root, download=self._download))
        return self._samples[name, options]

    def _partition_of(self, settings: Settings) -> str:
        fields = json.dumps(settings.model_dump(include=set(DATA_FIELDS)), sort_keys=True)
        if fields not in self._partitions:
            dataset = load_dataset(settings, self._data_root, download=self._download)
            self._partitions[fields] = load_partition(settings, dataset).hash
        return self._partitions[fields]


def _checksum(dataset: Dataset) -> str:
    """Checksum of the samples, and of what that may leave out: groups, subjects, and labels of pictures on disk."""
    groups, subjects = (None if of is None else of.tolist() for of in (dataset.groups, dataset.subjects))
    return f"{dataset.checksum} {digest(json.dumps([dataset.y.tolist(), groups, dataset.group_names, subjects]))}"


def read_by_constructor(name: str, shape: tuple[int, ...], classes: int, options: str) -> str:
    """Digest of what the constructor of a model with these options, as JSON, reads; empty if it reads nothing, or fails
    in another way than by a `UserError`, of which the model's author hears in the cell, with a traceback.
    """
    from bench.models.factory import values_of_constructor  # here, as it takes torch

    try:
        return values_of_constructor(name, shape, classes, json.loads(options))
    except UserError:
        raise
    except Exception:
        return ""
