"""The ids of cells under one data root: `bench.config.identity` with what only the samples themselves can say.

A file that an option names is known by its content before it is read, and most loaders compare checksums. What the
user's own data sets and partitions make is known from nothing but the result, and so are files under the data root that
have no published checksum. So are weights that a model's constructor reads.
"""

import json
from pathlib import Path

from bench.config.code_digests import is_own
from bench.config.file_digests import digest
from bench.config.identity import (
    NORMALISED,
    UNVERIFIED,
    cell_id,
    changes_inputs,
    declared_checksum,
    partition_options,
)
from bench.data import Dataset
from bench.errors import UserError
from bench.federation.cell_data import data_of, load_dataset, load_partition, read_data
from bench.plugin import DATASETS, MODELS, PARTITIONS
from bench.settings import BY_GROUPS, Settings

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

    Args:
        data_root: the folder of the data files.
        download: fetch missing files, where a data set can.

    Attributes:
        constructed: digests of what the constructors of models read, by the arguments of `read_by_constructor`.
    """

    def __init__(self, data_root: Path, *, download: bool = False) -> None:
        self._data_root = data_root
        self._download = download
        self._samples: dict[tuple[str, str], list[str]] = {}  # by name and options of a data set
        self._partitions: dict[str, str] = {}
        self._drawn_once: dict[str, bool] = {}
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
        """Texts that distinguish what a cell reads where its settings and declared checksum do not; else empty.

        The arguments and errors are those of `of`.
        """
        sets = data_of(settings)
        texts = self._content_of(*sets[0])
        texts += [f"public {text}" for public in sets[1:] for text in self._content_of(*public)]
        if is_own(PARTITIONS, settings.partition):
            texts.append(partition_hash or self._partition_hash(settings))
        if settings.partition in BY_GROUPS and settings.clients != "all" and self._draws_once(settings):
            texts.append("groups drawn once for all seeds")
        return texts + self.weights(settings)

    def weights(self, settings: Settings) -> list[str]:
        """Texts with what the constructors of the user's or another package's models read, one for each that reads any.

        Raises:
            UserError: the data are missing or damaged, or a model cannot be constructed for them.
        """
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

    def _draws_once(self, settings: Settings) -> bool:
        """Whether the same groups take part for every seed, and not all of them."""
        if partition_options(settings)["redraw"]:
            return False
        fields = settings.model_dump_json(include=set(DATA_FIELDS).difference(("seed", "partition_seed")))
        if fields not in self._drawn_once:
            dataset = load_dataset(settings, self._data_root, download=self._download)
            self._drawn_once[fields] = bool(load_partition(settings, dataset).left_out)
        return self._drawn_once[fields]

    def _content_of(self, name: str, options: str) -> list[str]:
        if not is_own(DATASETS, name) and name not in UNVERIFIED:
            return []
        if (name, options) not in self._samples:
            dataset = read_data(name, options, self._data_root, download=self._download)
            self._samples[name, options] = _texts(dataset, built_in=not is_own(DATASETS, name))
        return self._samples[name, options]

    def _partition_hash(self, settings: Settings) -> str:
        fields = json.dumps(settings.model_dump(include=set(DATA_FIELDS)), sort_keys=True)
        if fields not in self._partitions:
            dataset = load_dataset(settings, self._data_root, download=self._download)
            self._partitions[fields] = load_partition(settings, dataset).hash
        return self._partitions[fields]


def read_by_constructor(name: str, shape: tuple[int, ...], classes: int, options: str) -> str:
    """Digest of what the constructor of a model reads; empty if it reads nothing, or fails in another way than by a
    `UserError`, of which the model's author hears in the cell, with a traceback.

    Args:
        name, shape, classes: as of `bench.models.factory.build`.
        options: the model's, as JSON.

    Raises:
        UserError: the model does not fit the samples, or breaks the rules for models.
    """
    from bench.models.factory import values_of_constructor  # here, as it takes torch

    try:
        return values_of_constructor(name, shape, classes, json.loads(options))
    except UserError:
        raise
    except Exception:
        return ""


def _texts(dataset: Dataset, *, built_in: bool) -> list[str]:
    """Checksum of the samples, and digests of what it leaves out: groups, subjects, and labels of pictures that stay on
    disk.

    For the user's own sets the mark `NORMALISED` follows where it applies; `declared_checksum` has it for the others.
    """
    texts = [dataset.checksum]
    if dataset.groups is not None:
        texts.append(f"groups {digest(json.dumps([dataset.group_names, dataset.groups.tolist()]))}")
    if dataset.subjects is not None:
        texts.append(f"subjects {digest(json.dumps(dataset.subjects.tolist()))}")
    if built_in:
        texts.append(f"labels {digest(json.dumps(dataset.y.tolist()))}")
    elif dataset.floating and changes_inputs(dataset.mean, dataset.std):
        texts.append(NORMALISED)
    return texts
