"""What the harness knows of data: a data set in memory and its partition over clients."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class TokenShape(NamedTuple):
    """Shape of a row of token numbers: how many there are, and below which number they lie."""

    length: int
    vocabulary: int


@dataclass(frozen=True)
class Dataset:
    """Labelled samples in memory: the training part followed by the test part.

    Attributes:
        name: how reports call it, e.g. `cifar10` or `cifar10-jpeg`.
        x: `[n, channels, height, width]` uint8 images; float32 arrays such as `[n, features]` or, of time series,
            `[n, channels, time]`; or `[n, length]` int32 token numbers.
        y: `[n]` labels in `0 .. num_classes-1`.
        n_train: the first `n_train` samples are the official training part, the rest the test part.
        num_classes: number of classes.
        mean, std: per channel, in units of `x / 255` for images and of `x` otherwise; the engine normalises. Empty for
            tokens.
        checksum: hex digest of the content (part of a cell's identity).
        classes: names of the classes; may be empty.
        rows: `[n]` which row of the user's file each sample is, where the harness moved a held-out test part to the
            end; None: the samples are in the file's order. A split from a file counts rows.
        groups: `[n]` of which group (person, hospital, camera, domain) each sample is, as a position in `group_names`;
            None: the data say nothing of it.
        group_names: names of the groups.
        vocabulary: number of tokens; 0: the samples are no tokens.
    """

    name: str
    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int32]
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
    vocabulary: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: a `TokenShape` if it is tokens."""
        return TokenShape(self.x.shape[1], self.vocabulary) if self.vocabulary else tuple(self.x.shape[1:])

    def training_part(self) -> "Dataset":
        """The same without the official test part."""
        return self.subset(slice(self.n_train), self.n_train)

    def subset(self, which: slice | Indices, n_train: int) -> "Dataset":
        """Some of the samples, `n_train` of which are the training part."""
        rows, groups = (None if one is None else one[which] for one in (self.rows, self.groups))
        return replace(self, x=self.x[which], y=self.y[which], n_train=n_train, rows=rows, groups=groups)


def noise(shape: tuple[int, ...], classes: int, samples: int, rng: np.random.Generator) -> Dataset:
    """Samples of that shape without any meaning, all of them the training part; the classes take turns."""
    y = np.arange(samples) % classes
    if isinstance(shape, TokenShape):
        x = rng.integers(shape.vocabulary, size=(samples, shape.length), dtype=np.int32)
        return Dataset("noise", x, y, samples, classes, (), (), "", vocabulary=shape.vocabulary)
    x = rng.normal(size=(samples, *shape)).astype(np.float32)
    return Dataset("noise", x, y, samples, classes, (0.0,) * shape[0], (1.0,) * shape[0], "")


@dataclass(frozen=True)
class Partition:
    """Index lists into a data set's samples (training part, then test part).

    Attributes:
        train, validation, test: one index list per client. Training and validation lists never overlap, within a
            client or between clients; test lists may overlap between clients, never within one.
        global_test: the common test samples; empty: the generic model is tested on the union of the local tests.
        summary: one line for people.
        kept: samples that some seed may test on and none trains or validates on, beside the official test part.
        names: of the clients, where they are groups of the data; else empty.
        new: clients that take no part in training because the partition says so; else the cell draws them.
    """

    train: tuple[Indices, ...]
    validation: tuple[Indices, ...]
    test: tuple[Indices, ...]
    global_test: Indices
    summary: str = field(default="", compare=False)
    kept: Indices = field(default_factory=lambda: np.empty(0, np.int64), compare=False)
    names: tuple[str, ...] = ()
    new: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.train)

    @property
    def hash(self) -> str:
        """Hex digest of all index lists: equal partitions have equal hashes."""
        digest = hashlib.blake2b(digest_size=8)
        for lists in (self.train, self.validation, self.test, (self.global_test,)):
            for one in lists:
                digest.update(len(one).to_bytes(8, "little"))
                digest.update(np.ascontiguousarray(one, dtype="<i8").tobytes())
        return digest.hexdigest()


def without_tests(dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    """What is left of a data set and its partition without all samples that no client trains or validates on."""
    used = np.unique(np.concatenate([*partition.train, *partition.validation]))
    if np.array_equal(used, np.arange(dataset.n_train)):  # so the samples need not be copied
        return dataset.training_part(), partition
    smaller = dataset.subset(used, len(used))
    train, validation = (
        tuple(np.searchsorted(used, one) for one in lists) for lists in (partition.train, partition.validation)
    )
    return smaller, replace(partition, train=train, validation=validation)
