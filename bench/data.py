"""The data structures of the harness: a data set in memory and its partition over clients."""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.errors import UserError
from bench.rng import generator

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Part = Literal["train", "validation", "test"]
EMPTY: Indices = np.empty(0, np.int64)
"""A list of no samples."""


class TokenShape(NamedTuple):
    """Shape of a row of token numbers: its `length`, the number of tokens in the `vocabulary`, and the token that fills
    a row after the end of its text, `padding`."""

    length: int
    vocabulary: int
    padding: int = 0


@dataclass(frozen=True)
class Dataset:
    """Labelled samples in memory: the training part followed by the test part.

    Attributes:
        name: its name in reports, e.g. `cifar10` or `cifar10-jpeg`.
        x: `[n, channels, height, width]` uint8 images; float32 arrays such as `[n, features]`, or
            `[n, channels, time]` for time series; or `[n, length]` int32 token numbers. Features of a table are
            float64, nan where it has no number; networks see the mean there.
        y: `[n]` labels in `0 .. num_classes-1`; they index a model's outputs (logits) and `classes`.
        n_train: the first `n_train` samples are the official training part, the rest are the test part.
        num_classes: number of classes.
        mean, std: per channel, in units of `x / 255` for bytes and of `x` otherwise; the engine normalises with them,
            whatever the type of `x` is. Empty for tokens.
        checksum: hex digest of the content (part of a cell's identity).
        classes: names of the classes in the order of their numbers; may be empty.
        rows: `[n]` row of the user's file for each sample, if the harness moved a held-out test part to the end; None
            if the samples are in the file's order. A split from a file refers to these rows.
        groups: `[n]` group of each sample (person, hospital, camera, domain), as a position in `group_names`; None if
            the data set has no groups.
        group_names: names of the groups.
        subjects: `[n]` number, from 0, of whom or what each sample is of (a person, a recording): samples of one are
            never on both sides of a division into training, validation and tests; None if each stands for itself.
        vocabulary: number of tokens; 0 if the samples are not tokens.
        padding: the token after the end of a text.
        notes: what the user should know of how the data were read, one line each, such as what was left out.
        indicators: channels of 0 and 1, such as those of a table's categories; normalisation leaves them as they are.
        features: names of the channels; may be empty.
        client_statistics: by client the mean and the standard deviation, per channel and in units of the stored `x`, by
            which its samples are normalised already (`normalise: per_client`); empty if they are not. A standard
            deviation is infinite where the channel is constant.
        table: how rows of a table become samples: its `columns` (`datasets.columns.described`), and those that
            are `ignored`, in values that JSON can hold; None for other data.
        doubts: of a table, what makes comparisons mean little unless the user knows better: a column that alone tells
            the label, or `repeats` of rows, each with a sentence that `notes` have, too.

    Raises:
        UserError: `mean` or `std` does not have a usable number for each channel, or a label is no class.
    """

    name: str
    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32] | Floats | npt.NDArray[np.int32]
    y: Indices
    n_train: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksum: str
    classes: tuple[str, ...] = ()
    rows: Indices | None = None
    groups: Indices | None = None
    group_names: tuple[str, ...] = ()
    subjects: Indices | None = None
    vocabulary: int = 0
    padding: int = 0
    notes: tuple[str, ...] = ()
    indicators: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    client_statistics: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()
    table: Mapping[str, Any] | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample; a `TokenShape` if the samples are tokens."""
        if self.vocabulary:
            return TokenShape(self.x.shape[1], self.vocabulary, self.padding)
        return tuple(self.x.shape[1:])

    def __post_init__(self) -> None:
        self._check_labels()
        channels = 0 if self.vocabulary else self.x.shape[1]
        for what, values in (("mean", self.mean), ("std", self.std)):
            usable = len(values) == channels and np.isfinite(values).all()
            if not usable or (what == "std" and min(values, default=1) <= 0):
                kind = "positive numbers" if what == "std" else "finite numbers"
                raise UserError(f"{self.name}: {what} = {list(values)} should be {channels} {kind}, one per channel")

    def _check_labels(self) -> None:
        """Refuse labels that index no class: on a GPU the first loss with one of them would end the process."""
        if self.y.shape != self.x.shape[:1] or self.y.dtype.kind not in "iu":
            raise UserError(
                f"{self.name}: {len(self.x)} samples and labels of shape {self.y.shape} and type "
                f"{self.y.dtype}; each sample needs a label, a whole number"
            )
        if len(self.y) and not 0 <= self.y.min() <= self.y.max() < self.num_classes:
            raise UserError(
                f"{self.name}: its labels go from {self.y.min()} to {self.y.max()}, and {self.num_classes} "
                f"classes have labels 0 to {self.num_classes - 1}"
            )

    @property
    def floating(self) -> bool:
        """Whether the stored inputs are floating numbers: neither bytes nor tokens."""
        return self.x.dtype.kind == "f"

    @functools.cached_property
    def missing(self) -> npt.NDArray[np.bool_] | None:
        """Mask `[n, features]` of the numbers that are missing; None if none is."""
        gaps = np.isnan(self.x) if self.floating and self.x.ndim == 2 else None
        return gaps if gaps is not None and gaps.any() else None

    @functools.cached_property
    def filled(self) -> Array:
        """The inputs with the mean of their channel where a number is missing."""
        gaps = self.missing
        return self.x if gaps is None else np.where(gaps, np.array(self.mean, self.x.dtype), self.x)

    @property
    def blank(self) -> Floats:
        """Stored value of an empty pixel by channel, `[channels]`: 0, which is black, for bytes; the mean for floating
        inputs, as nothing says which number is black."""
        return np.array(self.mean) if self.floating else np.zeros(len(self.mean))

    def training_part(self) -> "Dataset":
        """The data set without the official test part."""
        return self.subset(slice(self.n_train), self.n_train)

    def subset(self, which: slice | Indices, n_train: int) -> "Dataset":
        """The samples at the positions `which`; the first `n_train` of them become the training part."""
        columns: dict[str, Any] = {name: None if column is None else column[which] for name, column in self._owners()}
        return replace(self, x=self.x[which], y=self.y[which], n_train=n_train, **columns)

    def extended(self, x: Array, y: Indices, source: "Dataset", at: Indices) -> "Dataset":
        """The data set with the samples `x` and labels `y` after all others: copies of those at `at` in `source`, whose
        rows, groups and subjects they have."""
        columns: dict[str, Any] = {
            name: None if old is None or new is None else np.concatenate([old, new[at]])
            for (name, old), (_, new) in zip(self._owners(), source._owners(), strict=True)
        }
        return replace(self, x=np.concatenate([self.x, x]), y=np.concatenate([self.y, y]), **columns)

    def sample_digests(self) -> Iterator[bytes]:
        """A digest of each sample's values, of floating ones in float32, as files may have the same in both types."""
        for values in self.x:
            known = values.astype(np.float32) if self.floating else values
            yield hashlib.blake2b(known.tobytes(), digest_size=16).digest()

    def _owners(self) -> list[tuple[str, Indices | None]]:
        """Names and columns of what says where samples are from."""
        return [("rows", self.rows), ("groups", self.groups), ("subjects", self.subjects)]


def noise(shape: tuple[int, ...], classes: int, samples: int, rng: np.random.Generator) -> Dataset:
    """Random samples of the given shape, all in the training part, with the classes in turn as labels."""
    y = np.arange(samples) % classes
    if isinstance(shape, TokenShape):
        x = rng.integers(shape.vocabulary, size=(samples, shape.length), dtype=np.int32)
        return Dataset("noise", x, y, samples, classes, (), (), "", vocabulary=shape.vocabulary, padding=shape.padding)
    x = rng.normal(size=(samples, *shape)).astype(np.float32)
    return Dataset("noise", x, y, samples, classes, (0.0,) * shape[0], (1.0,) * shape[0], "")


@dataclass(frozen=True)
class Partition:
    """Index lists into a data set's samples (training part, then test part).

    Attributes:
        train, validation, test: one index list per client. Training and validation lists never overlap, within a
            client or between clients; test lists may overlap between clients, never within one.
        global_test: the common test samples; if empty, the generic model is tested on the union of the local tests.
        summary: one line that describes the partition to a reader.
        kept: samples outside the official test part that some seed may test on and no seed trains or validates on.
        names: names of the clients if they are groups of the data, else empty.
        new: clients that the partition holds out of training; if empty, the cell draws its new clients.
        left_out: names of the groups of the data that are no client's for any seed.
        changes: later data of the same clients; the lists above are those until the first change.
    """

    train: tuple[Indices, ...]
    validation: tuple[Indices, ...]
    test: tuple[Indices, ...]
    global_test: Indices
    summary: str = field(default="", compare=False)
    kept: Indices = field(default_factory=lambda: EMPTY, compare=False)
    names: tuple[str, ...] = ()
    new: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    changes: tuple["Change", ...] = ()

    def __len__(self) -> int:
        return len(self.train)

    @property
    def clients(self) -> list[int]:
        """The clients that have training samples."""
        return [i for i, indices in enumerate(self.train) if len(indices)]

    @property
    def stages(self) -> "tuple[Partition, ...]":
        """The data before the first change, before the second and so on; a stage has no changes itself."""
        return (replace(self, changes=()), *(change.partition for change in self.changes))

    def stage(self, round: int) -> int:
        """The number of the stage whose data a round, from 1, is trained and its models are tested on."""
        return sum(change.round < round for change in self.changes)

    @property
    def hash(self) -> str:
        """Hex digest of all index lists: equal partitions have equal hashes."""
        digest = hashlib.blake2b(digest_size=8)
        for lists in (self.train, self.validation, self.test, (self.global_test,)):
            for indices in lists:
                digest.update(len(indices).to_bytes(8, "little"))
                digest.update(np.ascontiguousarray(indices, dtype="<i8").tobytes())
        for change in self.changes:
            digest.update(f"{change.round} {change.partition.hash}".encode())
        return digest.hexdigest()


class Change(NamedTuple):
    """Other data of the clients after a round.

    Attributes:
        round: the last round with the data as they were.
        partition: the data from then on.
    """

    round: int
    partition: Partition


@dataclass(frozen=True)
class Split:
    """Return value of a registered partition: index lists per client; None stands for lists that the harness makes.

    Attributes:
        train: local training data; if `validation` is None, the harness takes the validation shares from it.
        validation, test: as in `Partition`.
        global_test: as in `Partition`; if it is None, it is the official test part.
        kept, names, new, left_out: as in `Partition`.
    """

    train: Sequence[Indices]
    validation: Sequence[Indices] | None = None
    test: Sequence[Indices] | None = None
    global_test: Indices | None = None
    kept: Indices = field(default_factory=lambda: EMPTY)
    names: tuple[str, ...] = ()
    new: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Own:
    """One client's samples of one part, as a shift gets and returns them.

    Attributes:
        dataset: all samples as they were loaded.
        client, clients: the client's number and the number of clients.
        part: the use of the samples: training, validation or test.
        at: `[n]` their indices in the data set.
        x, y: `[n, ...]` inputs as stored (not normalised) and `[n]` labels, after the preceding shifts.
        held: sorted labels that the client trains or validates on.
        name, seed: name of the shift and seed of the cell's partition; the addresses of its draws begin with them.
    """

    dataset: Dataset
    client: int
    clients: int
    part: Part
    at: Indices
    x: Array
    y: Indices
    held: Indices
    name: str
    seed: int

    def rng(self, *address: int | str) -> np.random.Generator:
        """The generator at the address (seed, "shift", name of the shift, `address`): equal addresses, equal draws."""
        return generator(self.seed, "shift", self.name, *address)

    def group(self, groups: int) -> int:
        """The client's group, 0 .. groups - 1: assigned at random, in sizes that differ by at most one."""
        places = self.rng("groups").permutation(self.clients)
        return int(places[self.client]) % groups

    def only(self, which: npt.NDArray[np.bool_]) -> "Own":
        """The samples where the mask `which`, `[n]`, is true."""
        return replace(self, at=self.at[which], x=self.x[which], y=self.y[which])


def without_tests(dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """The data set and partition with only those samples that some client trains or validates on."""
    lists = [indices for stage in partition.stages for indices in (*stage.train, *stage.validation)]
    used = np.unique(np.concatenate(lists))
    if np.array_equal(used, np.arange(dataset.n_train)):  # a slice does not copy the samples
        return dataset.training_part(), partition
    return dataset.subset(used, len(used)), _renumbered(partition, used)


def _renumbered(partition: Partition, used: Indices) -> Partition:
    """The training and validation lists of all stages in the numbers of a smaller data set."""
    train, validation = (
        tuple(np.searchsorted(used, indices) for indices in lists) for lists in (partition.train, partition.validation)
    )
    changes = tuple(change._replace(partition=_renumbered(change.partition, used)) for change in partition.changes)
    return replace(partition, train=train, validation=validation, changes=changes)
