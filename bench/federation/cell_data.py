"""The data of a cell, from its settings: the data set, the public samples, the partition, the shifts, the attack."""

import functools
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.config.digests import digest, versions
from bench.config.identity import UNVERIFIED
from bench.data import Dataset, Indices, Partition, without_tests
from bench.errors import UserError
from bench.plugin import DATASETS, call_factory
from bench.rng import generator
from bench.samples import changes, corruptions, normalising, shifts
from bench.samples.division import make_partition
from bench.settings import CorruptedTest, FileTest, FurtherTest, Settings, noise_of

CellData = tuple[Dataset, Partition, Dataset | None]
"""What a cell works on: the clients' samples, who has which, and the public samples, if there are any."""


def load_all(settings: Settings, data_root: Path = Path("data")) -> CellData:
    """Data set, partition and public samples of a cell, as its federation takes them: a trial of a sweep has no tests.

    Raises:
        UserError: a data set, partition or shift is unknown, missing or damaged, or cannot be divided so.
    """
    dataset = load_dataset(settings, data_root)
    dataset, partition = as_trained(settings, dataset, load_partition(settings, dataset))
    return dataset, partition, load_public(settings, data_root)


def as_trained(settings: Settings, dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """Samples and partition as a cell takes them: after its shifts, its attack and its normalisation, and without tests
    if it is a trial of a sweep.

    Raises:
        UserError: a shift, an attack or the normalisation does not fit the data.
    """
    dataset, partition = apply_shifts(settings, dataset, partition)
    if settings.attack is not None:
        from bench.federation.attacks import poison  # here, as it takes torch

        dataset = poison(settings, dataset, partition)
    dataset, partition = normalised(settings, dataset, partition)
    if settings.protocol == "tuning":
        return without_tests(dataset, partition)  # what a trial does not have it cannot read
    return dataset, partition


def load_dataset(settings: Settings, data_root: Path = Path("data"), *, download: bool = False) -> Dataset:
    """Load the data set of a cell; with `download`, fetch missing files, where the data set can.

    The last two data sets stay in memory, because cells that run one after another mostly have the same. A data set is
    read again in another current directory, and when one of its files changes (`_versions`).

    Raises:
        UserError: the data set is unknown, missing or damaged.
    """
    return read_data(*data_of(settings)[0], data_root, download=download)


def load_public(settings: Settings, data_root: Path, *, download: bool = False) -> Dataset | None:
    """Load the public samples of a cell, if it has any: the training part of their set, or a draw from it by the seed.

    Of the clients' own data set only samples that no client holds are taken; where clients hold all of its training
    part, samples that none is validated or tested on, which noise forbids. Samples that are kept for tests of other
    seeds are never taken.

    Raises:
        UserError: the set is unknown, missing or damaged, too small, or of another shape than the clients' data; it is
            the clients' data read in another way; or its samples are theirs and the cell has noise for privacy.
    """
    chosen = settings.public
    if chosen is None:
        return None
    dataset = load_dataset(settings, data_root, download=download)
    public = read_data(*data_of(settings)[1], data_root, download=download).training_part()
    if public.shape != dataset.shape:
        raise UserError(
            f"the public set {chosen.name!r} has samples of shape {public.shape}, the clients' data of "
            f"{dataset.shape}; they should be the same"
        )
    same_set = public.checksum == dataset.checksum
    own_path, path = (str(options.get("path") or "") for options in (settings.dataset_options, chosen.options))
    if not same_set and own_path and path and Path(own_path).resolve() == Path(path).resolve():
        raise UserError(
            f"the public set is the clients' own file, {path}, read in another way: samples on which "
            "they are tested could be among it. Give it the options of the clients' data, or another file"
        )
    if not same_set and _may_share(settings) and (shared := _shared(public, dataset)):
        raise UserError(
            f"the public set {chosen.name!r} is the clients' data read in another way: {shared} of its "
            f"{public.n_train} training samples are among theirs, where clients may be tested on them. Give it the "
            "options of the clients' data, of which only samples that no client holds are drawn, or another data set"
        )
    free = _free(settings, dataset) if same_set else np.arange(public.n_train)
    size = chosen.size or len(free)
    if not 1 <= size <= len(free):
        restriction = " that may be public, as clients hold the others" if same_set else ""
        raise UserError(
            f"public size = {size}: {chosen.name!r} has {len(free)} training samples{restriction}; ask for fewer, or "
            "for another data set"
        )
    drawn = np.sort(free[generator("public set", settings.seed).choice(len(free), size, replace=False)])
    return public.subset(drawn, size)


_NIST = {"emnist", "emnist_writers"}  # the same pictures, in other files


def _may_share(settings: Settings) -> bool:
    """Whether the public set may be of the clients' source.

    Not in question are files apart, other built-in sets and other draws: their samples may be equal by chance alone, as
    rows of small tables and short texts are.
    """
    assert settings.public is not None
    options, others = settings.dataset_options, settings.public.options
    if options.get("path") and others.get("path"):
        place, other = (Path(str(given["path"])).resolve() for given in (options, others))
        return place.is_relative_to(other) or other.is_relative_to(place)
    if options.get("path") or others.get("path"):
        return True  # a user's copy of a built-in set
    names = {settings.dataset, settings.public.name}
    return names == _NIST or (len(names) == 1 and options.get("draw", 0) == others.get("draw", 0))


def _shared(samples: Dataset, dataset: Dataset) -> int:
    """The number of samples that are samples of the other data set, too, by their values."""
    if samples.x.dtype.kind != dataset.x.dtype.kind:
        return 0
    known = set(dataset.sample_digests())
    return sum(sample in known for sample in samples.sample_digests())


def _free(settings: Settings, dataset: Dataset) -> Indices:
    """Training samples of the clients' own data set that may be public.

    Raises:
        UserError: all are some client's, and the cell has noise for privacy.
    """
    if settings.protocol == "tuning":  # a trial must not see the tests either
        settings = settings.model_copy(update={"protocol": "honest"})
    partition = load_partition(settings, dataset)
    evaluated = np.concatenate([*partition.validation, *partition.test, partition.global_test, partition.kept])
    training = np.arange(dataset.n_train)
    free = np.setdiff1d(training, np.concatenate([*partition.train, evaluated]))
    noise = settings.dp_sgd is not None or noise_of(settings.channel) is not None
    if noise and not len(free):
        raise UserError(
            f"public: clients train on all training samples of {dataset.name!r}, so that public ones would be theirs, "
            "and the noise of the cell does not cover what is done with these: take another public data set, or a "
            "partition that leaves samples to nobody, such as dirichlet with `shares`"
        )
    return free if len(free) else np.setdiff1d(training, evaluated)


def data_of(settings: Settings) -> list[tuple[str, str]]:
    """The data sets that a cell reads: name, and options as JSON."""
    sets = [(settings.dataset, json.dumps(settings.dataset_options, sort_keys=True))]
    if settings.public is not None:
        sets.append((settings.public.name, json.dumps(settings.public.options, sort_keys=True)))
    return sets


_LEVELS = 3  # in a folder of which nothing is known but its name; it may hold a million pictures
_PROVIDED: dict[tuple[str, str], Dataset] = {}


def provide(name: str, options: str, dataset: Dataset) -> None:
    """Use these samples from now on for a data set that `data_of` lists, whatever lies under a data root."""
    _PROVIDED[name, options] = dataset


def read_data(name: str, options: str, data_root: Path, *, download: bool = False) -> Dataset:
    """Read a data set that `data_of` lists.

    Raises:
        UserError: the data set is unknown, missing or damaged.
    """
    if (name, options) in _PROVIDED:
        return _PROVIDED[name, options]
    return _loaded(name, options, data_root, download, DATASETS.get(name), _versions(name, options, data_root))


@functools.lru_cache(maxsize=2)
def _loaded(name: str, options: str, data_root: Path, download: bool, factory: Any, versions: str) -> Dataset:
    """Load a data set; `versions` tells its files from those of another time or another current directory."""
    arguments = {"data_root": data_root, "download": download, **json.loads(options)}
    return call_factory(f"data set {name!r}", Dataset, factory, **arguments)


def _versions(name: str, options: str, data_root: Path) -> str:
    """A digest of the current directory and the versions of the files that options name, and that are the set's."""
    texts = {key: value for key, value in json.loads(options).items() if isinstance(value, str) and value}
    # Any other text may be a path, of a plug-in's data set, too; a column may be called as a large folder is here.
    places = [Path(text) for key, text in texts.items() if key != "name" and not key.endswith("_column")]
    places += [data_root / place for place in UNVERIFIED.get(name, ())]
    return digest(repr((Path.cwd(), [*map(versions, places), versions(data_root / name, _LEVELS)])))


def load_partition(settings: Settings, dataset: Dataset) -> Partition:
    """Divide the samples of a cell over its clients: index lists for training, validation and test by client.

    Raises:
        UserError: the data set cannot be divided so.
    """
    partition = make_partition(
        dataset,
        settings.partition,
        clients=settings.clients,
        alpha=settings.alpha,
        seed=settings.seed if settings.partition_seed is None else settings.partition_seed,
        protocol=settings.protocol,
        validation_share=settings.validation_share,
        options=settings.partition_options,
    )
    if partition.new and len(partition.new) != settings.new_clients:
        raise UserError(
            f"the partition holds {len(partition.new)} clients out of training and new_clients = "
            f"{settings.new_clients}; set `new_clients: {len(partition.new)}`"
        )
    return partition


def apply_shifts(settings: Settings, dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """Apply the shifts of a cell, and its timeline: samples and partition as its clients have them.

    Raises:
        UserError: a shift or a change does not fit the data.
    """
    seed = settings.seed if settings.partition_seed is None else settings.partition_seed
    if settings.timeline:
        return changes.apply(dataset, partition, settings.shifts, settings.timeline, settings.arriving, seed)
    if not settings.shifts:
        return dataset, partition
    return shifts.apply(dataset, partition, settings.shifts, seed)


def normalised(settings: Settings, dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """Samples and partition after the cell's `normalise`.

    Raises:
        UserError: the samples are tokens.
    """
    if settings.normalise is None:
        return dataset, partition
    training = [client for client, at in enumerate(partition.train) if len(at)]
    if settings.new_clients:
        from bench.federation.setup import divide_clients  # here, as it takes torch

        training, _ = divide_clients(training, settings, partition.new)
    return normalising.apply(dataset, partition, settings.normalise, training)


def tested(settings: Settings, tests: Iterable[FurtherTest]) -> str:
    """Name the data, the way to divide them and the tests: cells that have these alike have the same notes on tests."""
    fields = {"dataset", "dataset_options", "partition", "partition_options"}
    return json.dumps([settings.model_dump(include=fields), *(test.model_dump() for test in tests)], sort_keys=True)


def check_tests(tests: Iterable[FurtherTest], dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """Refuse further tests that the data do not allow, and note how many samples of files clients may train on.

    Args:
        tests: of the cell.
        dataset, partition: of the cell, before shifts. Clients train on samples of the training part, but where the
            partition draws tests of its own from both parts.

    Raises:
        UserError: corrupted tests of samples that are no images of bytes, or a file that is missing or of others.
    """
    notes = []
    for test in tests:
        if isinstance(test, CorruptedTest):
            corruptions.check(dataset.x)
        elif isinstance(test, FileTest):
            samples = file_samples(test.path, dataset)
            of_both = any(at.max(initial=-1) >= dataset.n_train for at in partition.train)
            if count := _shared(samples, dataset if of_both else dataset.training_part()):
                notes.append(
                    f"tests: {count} of {len(samples.y)} samples of {test.path} equal samples of {dataset.name} on "
                    "which clients may train"
                )
    return tuple(notes)


def file_samples(path: str, like: Dataset) -> Dataset:
    """The samples of an .npz file for a cell's models: its test part, or all where it has none.

    They are normalised with the cell's mean and standard deviation.

    Args:
        path: the file, as the data set `npz` reads it.
        like: the cell's data set. Labels are its classes by name, or their numbers.

    Raises:
        UserError: there is no such file, or its samples or labels are not of the cell's kind; or each client normalises
            its own samples.
    """
    if like.client_statistics:
        raise UserError(
            f"tests: the samples of {path} are no client's, and under `normalise: per_client` only clients have a mean "
            "and a deviation; leave this test out"
        )
    x, labels, sizes, _ = DATASETS.offered("npz", "samples")(Path(path))
    if count := sizes["test"]:
        x, labels = x[-count:], labels[-count:]
    if (x.shape[1:], x.dtype.kind) != (like.x.shape[1:], like.x.dtype.kind):
        raise UserError(
            f"tests: {path} has samples of {x.dtype} {x.shape[1:]}, and {like.name} has {like.x.dtype} "
            f"{like.x.shape[1:]}; they should be the same"
        )
    if like.vocabulary and len(x) and not 0 <= x.min() <= x.max() < like.vocabulary:
        raise UserError(
            f"tests: {path} has tokens from {x.min()} to {x.max()}, and {like.name} a vocabulary of {like.vocabulary}"
        )
    by_name = {name: number for number, name in enumerate(like.classes)}
    names = [str(label) for label in labels.tolist()]
    numbered = any(name.lstrip("-").isdigit() for name in by_name)  # so that a number is a name, not a class's place
    if set(names) <= by_name.keys():
        y = np.array([by_name[name] for name in names], np.int64)
    elif not numbered and labels.dtype.kind in "biu" and labels.min() >= 0 and labels.max() < like.num_classes:
        y = labels.astype(np.int64)
    else:
        strange = next((name for name in names if name not in by_name), names[0])
        raise UserError(f"tests: {path} has labels that are no classes of {like.name}, such as {strange!r}")
    return replace(like, x=x, y=y, n_train=0, rows=None, groups=None, subjects=None)
