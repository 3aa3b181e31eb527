"""Official files that torchvision reads, in its folder layout: CIFAR, MNIST and similar, EMNIST, USPS, SVHN, STL-10.

torchvision compares MD5 sums: of CIFAR's files at every start, of MNIST's and EMNIST's archives when it unpacks them.
The unpacked files of the latter two are checked here by their size, and those of MNIST and its like by MD5 sums where
they are known and by the mean of their pixels. Where mean and std are fixed, they are the values in common use.
"""

import hashlib
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from bench.samples.normalising import channel_statistics
from datasets.assemble import assemble

_IDX = {  # samples of the two parts, mean, std
    "mnist": ((60_000, 10_000), 0.1307, 0.3081),
    "fashion_mnist": ((60_000, 10_000), 0.2860, 0.3530),
    "kmnist": ((60_000, 10_000), 0.1918, 0.3483),
    "emnist-balanced": ((112_800, 18_800), 0.1751, 0.3332),
    "emnist-byclass": ((697_932, 116_323), 0.1736, 0.3317),
}
_CIFAR = {  # mean and std by channel
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
_UNPACKED = {  # MD5 sums of images and labels of the training part, then of the test part, as `gunzip` leaves them
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion_mnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}  # fmt: skip
_ALIKE = 0.005
"""Largest difference of mean and std of two samples of one set; MNIST, Fashion-MNIST and KMNIST differ by ten times
that."""
_SIDE = 28
_STL10 = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
Parts = tuple[dict[str, Any], dict[str, Any]]
_HEADERS = (16, 8)  # bytes, of images and of labels


def _register(name: str, of_torchvision: str, read: Callable[..., Dataset], described: str) -> None:
    """Register a set whose loader differs from its like in torchvision's class alone."""

    def load(
        *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
    ) -> Dataset:
        from torchvision import datasets

        return read(name, getattr(datasets, of_torchvision), data_root, download, mean, std)

    load.__doc__ = f"{described}.\n\nRaises:\n    UserError: a file is missing, has a wrong checksum or a wrong size.\n"
    DATASETS.register(name)(load)


@DATASETS.register("usps")
def usps(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """USPS (Hull 1994): `[9298, 1, 16, 16]` digits of envelopes, 7,291 for training.

    Raises:
        UserError: a file is missing or has a wrong checksum.
    """
    from torchvision.datasets import USPS

    files = {data_root / name: md5 for _, name, md5 in USPS.split_list.values()}
    train, test = _open("usps", USPS, data_root, download, files)
    if fault := _fault(files):  # torchvision compares checksums only of files that it has just fetched
        raise UserError(f"usps: {fault}; delete it and add `--download`")
    x = np.concatenate([train.data, test.data])[:, None]
    y = np.concatenate([train.targets, test.targets])
    return assemble("usps", x, y, len(train.targets), mean=mean, std=std, classes=list("0123456789"))


@DATASETS.register("svhn")
def svhn(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """SVHN (Netzer et al. 2011), cropped: `[99289, 3, 32, 32]` house numbers, 73,257 for training, without `extra`.

    Raises:
        UserError: a file is missing or has a wrong checksum.
    """
    from torchvision.datasets import SVHN

    files = {data_root / name: md5 for _, name, md5 in (SVHN.split_list[part] for part in ("train", "test"))}
    parts: Parts = ({"split": "train"}, {"split": "test"})
    train, test = _open("svhn", SVHN, data_root, download, files, parts)
    x, y = np.concatenate([train.data, test.data]), np.concatenate([train.labels, test.labels])
    return assemble("svhn", x, y, len(train.labels), mean=mean, std=std, classes=list("0123456789"))


@DATASETS.register("stl10")
def stl10(
    *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
) -> Dataset:
    """STL-10 (Coates et al. 2011): `[13000, 3, 96, 96]` photographs with labels, 5,000 for training, 10 classes.

    Raises:
        UserError: a file is missing or has a wrong checksum.
    """
    from torchvision.datasets import STL10

    # without the unlabelled part of 2.8 GB, which torchvision would check as well
    listed = (*STL10.train_list[:2], *STL10.test_list)
    files = {data_root / STL10.base_folder / file: md5 for file, md5 in listed}
    if download and _fault(files):
        _open("stl10", STL10, data_root, download, files, ({"split": "train"}, {"split": "test"}))
    if fault := _fault(files):
        raise UserError(f"stl10: {fault}; add `--download` to fetch it again")
    train_x, train_y, test_x, test_y = (np.fromfile(file, np.uint8) for file in files)
    x = np.concatenate([train_x, test_x]).reshape(-1, 3, 96, 96).swapaxes(2, 3)  # columns first in the files
    y = np.concatenate([train_y, test_y]).astype(np.int64) - 1
    return assemble("stl10", x, y, len(train_y), mean=mean, std=std, classes=_STL10)


@DATASETS.register("emnist")
def emnist(
    *,
    data_root: Path,
    download: bool,
    split: Literal["balanced", "byclass"] = "balanced",
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """EMNIST (Cohen et al. 2017): `[n, 1, 28, 28]`; `balanced` has 47 classes, `byclass` 62.

    The official files hold the images transposed; here they are upright.

    Raises:
        UserError: a file is missing, has a wrong checksum or a wrong size.
    """
    from torchvision.datasets import EMNIST

    name = f"emnist-{split}"
    folder = data_root / "EMNIST" / "raw"
    stems = [f"{name}-{part}" for part in ("train", "test")]
    files = [folder / f"{stem}-{kind}-ubyte" for stem in stems for kind in ("images-idx3", "labels-idx1")]
    x, y, classes = _idx(name, EMNIST, data_root, download, files, split=split)
    (n_train, _), known_mean, known_std = _IDX[name]
    upright = x.swapaxes(2, 3)
    return assemble(name, upright, y, n_train, mean=mean or [known_mean], std=std or [known_std], classes=classes)


def _cifar(
    name: str, factory: Any, data_root: Path, download: bool, mean: list[float] | None, std: list[float] | None
) -> Dataset:
    folder = data_root / factory.base_folder
    listed = [*factory.train_list, *factory.test_list, (factory.meta["filename"], factory.meta["md5"])]
    train, test = _open(name, factory, data_root, download, {folder / file: md5 for file, md5 in listed})
    x = np.concatenate([train.data, test.data]).transpose(0, 3, 1, 2)
    y = np.concatenate([train.targets, test.targets])
    groups = _superclasses(folder, factory) if name == "cifar100" else None
    known_mean, known_std = _CIFAR[name]
    return assemble(
        name, x, y, len(train.targets), mean=mean or known_mean, std=std or known_std, classes=train.classes,
        groups=groups,
    )  # fmt: skip


def _superclasses(folder: Path, factory: Any) -> Array:
    """The name of each sample's superclass, read from files whose checksums torchvision has just compared."""
    files = [*(file for file, _ in (*factory.train_list, *factory.test_list)), factory.meta["filename"]]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"dtype\(\): align", category=np.exceptions.VisibleDeprecationWarning)
        *parts, meta = (pickle.loads((folder / file).read_bytes(), encoding="latin1") for file in files)
    names = meta["coarse_label_names"]
    return np.array([names[label] for part in parts for label in part["coarse_labels"]])


def _mnist_like(
    name: str, factory: Any, data_root: Path, download: bool, mean: list[float] | None, std: list[float] | None
) -> Dataset:
    folder = data_root / factory.__name__ / "raw"
    files = [folder / file.removesuffix(".gz") for file, _ in factory.resources]
    x, y, names = _idx(name, factory, data_root, download, files)
    (n_train, _), known_mean, known_std = _IDX[name]
    return assemble(
        name, x, y, n_train, mean=mean or [known_mean], std=std or [known_std],
        classes=[*"0123456789"] if name == "mnist" else names, notes=_check_identity(name, files, x[:n_train]),
    )  # fmt: skip


def _check_identity(name: str, files: Sequence[Path], images: Array) -> list[str]:
    """Refuse the files of another set of this format; say in a note that files are not the published ones.

    Args:
        name: the set that they should be.
        files: images and labels of the training part, then of the test part.
        images: those of the training part.

    Raises:
        UserError: a file is another set's, by its checksum; or the pixels have the mean and deviation of another set.
    """
    advice = f"put the files of {name} into {files[0].parent}, or set `datasets` to the set that these are"
    owners = {md5: owner for owner, sums in _UNPACKED.items() for md5 in sums}
    sums = [hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() for file in files]
    for file, md5 in zip(files, sums, strict=True):
        if owners.get(md5, name) != name:
            raise UserError(f"{name}: {file} is a file of {owners[md5]}, by its checksum; {advice}")
    if tuple(sums) == _UNPACKED.get(name):
        return []
    (mean,), (std,) = channel_statistics(images)
    for owner in {"mnist", "fashion_mnist", "kmnist"} - {name}:
        if max(abs(mean - _IDX[owner][1]), abs(std - _IDX[owner][2])) < _ALIKE:
            raise UserError(
                f"{name}: the pixels of {files[0]} have mean {mean:.4f} and standard deviation {std:.4f}, which are "
                f"those of {owner}; {advice}"
            )
    others = [file for file, md5, known in zip(files, sums, _UNPACKED.get(name, sums), strict=True) if md5 != known]
    return [
        f"{name}: {file} is not the published file, by its checksum: say beside results what differs, such as the "
        "split or the encoding"
        for file in others[:1]
    ]


def _idx(
    name: str, factory: Any, data_root: Path, download: bool, files: Sequence[Path], **options: Any
) -> tuple[Array, Array, list[str]]:
    """Images `[n, 1, 28, 28]`, labels and class names of a set in MNIST's format.

    Args:
        files: images and labels of the training part, then of the test part.
    """
    sizes = _IDX[name][0]
    values = [_HEADERS[kind] + n * (_SIDE**2, 1)[kind] for n in sizes for kind in (0, 1)]
    for file, expected in zip(files, values, strict=True):
        if file.is_file() and file.stat().st_size != expected:
            raise UserError(
                f"{name}: {file} has {file.stat().st_size} bytes instead of {expected}; delete it and add `--download`"
            )
    train, test = _open(name, factory, data_root, download, dict.fromkeys(files), **options)
    x = np.concatenate([train.data.numpy(), test.data.numpy()])[:, None]
    y = np.concatenate([train.targets.numpy(), test.targets.numpy()])
    return x, y, list(train.classes)


def _open(
    name: str, factory: Any, data_root: Path, download: bool, files: Mapping[Path, str | None],
    parts: Parts = ({"train": True}, {"train": False}), **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Open torchvision's training and test set.

    Args:
        files: the files that it will read, each with its MD5 sum where torchvision knows one.
        parts: the arguments that select the training part and the test part.

    Raises:
        UserError: torchvision cannot read or fetch the files; the message names the file.
    """
    with warnings.catch_warnings():
        # NumPy 2.4.0 to 2.4.4 warn about pickles as old as the official CIFAR files
        warnings.filterwarnings("ignore", message=r"dtype\(\): align", category=np.exceptions.VisibleDeprecationWarning)
        try:
            train, test = (factory(root=data_root, download=download, **part, **options) for part in parts)
        except (RuntimeError, OSError, ValueError, AssertionError) as error:
            fault = _fault(files) or f"the files beside {next(iter(files))} cannot be read ({error})"
            advice = (
                f"the download did not help ({error})"
                if download
                else "add `--download` to fetch it, or set `--data-root` to the folder that holds the data sets"
            )
            raise UserError(f"{name}: {fault}; {advice}") from None
    return train, test


def _fault(files: Mapping[Path, str | None]) -> str:
    from torchvision.datasets.utils import check_integrity

    for file in files:
        if not file.is_file():
            return f"{file} is missing"
    for file, md5 in files.items():
        if not check_integrity(file, md5):
            return f"{file} has a wrong checksum"
    return ""


_CIFARS = "(Krizhevsky 2009): `[60000, 3, 32, 32]`, 50,000 for training"
_DIGITS = "`[70000, 1, 28, 28]`, 60,000 for training"
_register("cifar10", "CIFAR10", _cifar, f"CIFAR-10 {_CIFARS}, 10 classes")
_register("cifar100", "CIFAR100", _cifar, f"CIFAR-100 {_CIFARS}, 100 fine classes; groups: superclasses")
_register("mnist", "MNIST", _mnist_like, f"MNIST (LeCun et al. 1998): {_DIGITS}, 10 classes")
_register("fashion_mnist", "FashionMNIST", _mnist_like,
          f"Fashion-MNIST (Xiao et al. 2017): {_DIGITS}, 10 kinds of clothes")  # fmt: skip
_register("kmnist", "KMNIST", _mnist_like,
          f"Kuzushiji-MNIST (Clanuwat et al. 2018): {_DIGITS}, 10 cursive characters")  # fmt: skip
