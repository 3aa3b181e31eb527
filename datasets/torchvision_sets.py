"""Official files in torchvision's folder layout: CIFAR, MNIST and similar, EMNIST, USPS, SVHN, STL-10.

torchvision fetches the files and knows their MD5 sums, which are compared at every start. Of MNIST and its like and of
EMNIST it knows those of the archives; the unpacked files are checked by their size, and those of MNIST and its like by
MD5 sums where they are known and by the mean of their pixels. Where mean and std are fixed, they are the values in
common use.
"""

import hashlib
import pickle
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.data import Array, Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from bench.samples.normalising import channel_statistics
from datasets.assemble import assemble
from datasets.published import fault_of, fetch

_SIZES = {  # samples of the training part and of the test part
    "mnist": (60_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "kmnist": (60_000, 10_000),
    "emnist-balanced": (112_800, 18_800),
    "emnist-byclass": (697_932, 116_323),
}
_KNOWN = {  # mean and std by channel
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "kmnist": ((0.1918,), (0.3483,)),
    "emnist-balanced": ((0.1751,), (0.3332,)),
    "emnist-byclass": ((0.1736,), (0.3317,)),
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
_HEADERS = (16, 8)  # bytes, of images and of labels
_STL10 = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
_PARTS = ({"train": True}, {"train": False})
_SPLITS = ({"split": "train"}, {"split": "test"})

_Arrays = tuple[Array, Array, int, dict[str, Any]]
"""Samples, labels, size of the training part, and further arguments of `assemble`."""
_Read = Callable[[str, Any, Path, bool], _Arrays]
"""Reads a set by its name, torchvision's class of it, the data root, and whether files may be fetched."""


def _register(name: str, of_torchvision: str, read: _Read, described: str) -> None:
    def load(
        *, data_root: Path, download: bool, mean: list[float] | None = None, std: list[float] | None = None
    ) -> Dataset:
        from torchvision import datasets

        x, y, n_train, further = read(name, getattr(datasets, of_torchvision), data_root, download)
        known_mean, known_std = _KNOWN.get(name, (None, None))
        return assemble(name, x, y, n_train, mean=mean or known_mean, std=std or known_std, **further)

    load.__doc__ = f"{described}."
    DATASETS.register(name)(load)


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
    """
    from torchvision.datasets import EMNIST

    name, folder = f"emnist-{split}", data_root / "EMNIST" / "raw"
    kinds = [f"{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
    files = [folder / f"{name}-{kind}" for kind in kinds]
    x, y, n_train = _idx(name, files, download, lambda: EMNIST(data_root, split=split, download=True))
    known_mean, known_std = _KNOWN[name]
    return assemble(
        name, x.swapaxes(2, 3), y, n_train, mean=mean or known_mean, std=std or known_std,
        classes=EMNIST.classes_split_dict[split],
    )  # fmt: skip


def _mnist_like(name: str, factory: Any, data_root: Path, download: bool) -> _Arrays:
    folder = data_root / factory.__name__ / "raw"
    files = [folder / file.removesuffix(".gz") for file, _ in factory.resources]
    x, y, n_train = _idx(name, files, download, lambda: factory(data_root, download=True))
    classes = [*"0123456789"] if name == "mnist" else factory.classes
    return x, y, n_train, {"classes": classes, "notes": _check_identity(name, files, x[:n_train])}


def _idx(name: str, files: Sequence[Path], download: bool, load: Callable[[], object]) -> tuple[Array, Array, int]:
    """Images `[n, 1, 28, 28]`, labels and size of the training part of a set in MNIST's format.

    Args:
        files: images and labels of the training part, then of the test part.
        load: fetches them.
    """
    n_train, n_test = _SIZES[name]
    sizes = [_HEADERS[kind] + n * (_SIDE**2, 1)[kind] for n in (n_train, n_test) for kind in (0, 1)]

    def fault() -> str:
        for file, size in zip(files, sizes, strict=True):
            if file.is_file() and file.stat().st_size != size:
                return f"{file} has {file.stat().st_size} bytes instead of {size}; delete it"
        return fault_of(dict.fromkeys(files))

    fetch(name, fault, download, load)
    x, y = (
        np.concatenate([np.fromfile(file, np.uint8, offset=_HEADERS[kind]) for file in files[kind::2]])
        for kind in (0, 1)
    )
    return x.reshape(-1, 1, _SIDE, _SIDE), y.astype(np.int64), n_train


def _check_identity(name: str, files: Sequence[Path], images: Array) -> list[str]:
    """Refuse the files of another set of this format; say in a note that files are not the published ones.

    Args:
        name: the set that they should be.
        files: images and labels of the training part, then of the test part.
        images: those of the training part.

    Raises:
        UserError: a file is another set's, by its checksum; or the pixels have the mean and deviation of another set.
    """
    sums = tuple(hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() for file in files)
    if sums == _UNPACKED.get(name):
        return []
    (mean,), (std,) = channel_statistics(images)
    for owner in {"mnist", "fashion_mnist", "kmnist"} - {name}:
        (known_mean,), (known_std,) = _KNOWN[owner]
        if {*sums} & {*_UNPACKED.get(owner, ())} or max(abs(mean - known_mean), abs(std - known_std)) < _ALIKE:
            raise UserError(
                f"{name}: files in {files[0].parent} are those of {owner}, by their checksums or their pixels' mean "
                f"{mean:.4f}; put those of {name} there, or set `datasets` to the set that these are"
            )
    if name not in _UNPACKED:
        return []
    return [
        f"{name}: files in {files[0].parent} are not the published ones, by their checksums: say beside results what "
        "differs, such as the split or the encoding"
    ]


def _cifar(name: str, factory: Any, data_root: Path, download: bool) -> _Arrays:
    folder = data_root / factory.base_folder
    listed = [*factory.train_list, *factory.test_list, (factory.meta["filename"], factory.meta["md5"])]
    _fetch(name, factory, data_root, download, {folder / file: md5 for file, md5 in listed}, _PARTS[:1])
    with warnings.catch_warnings():
        # NumPy 2.4.0 to 2.4.4 warn about pickles as old as these
        warnings.filterwarnings("ignore", message=r"dtype\(\): align", category=np.exceptions.VisibleDeprecationWarning)
        *parts, meta = (pickle.loads((folder / file).read_bytes(), encoding="latin1") for file, _ in listed)
    x = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
    y = np.concatenate([part["labels" if name == "cifar10" else "fine_labels"] for part in parts])
    n_train = sum(len(part["data"]) for part in parts[: len(factory.train_list)])
    further = {"classes": meta[factory.meta["key"]]}
    if name == "cifar100":
        superclasses = np.concatenate([part["coarse_labels"] for part in parts])
        further["groups"] = np.array(meta["coarse_label_names"])[superclasses]
    return x, y, n_train, further


def _usps(name: str, factory: Any, data_root: Path, download: bool) -> _Arrays:
    files = {data_root / file: md5 for _, file, md5 in factory.split_list.values()}
    _fetch(name, factory, data_root, download, files, _PARTS)
    train, test = (factory(data_root, **part) for part in _PARTS)
    x = np.concatenate([train.data, test.data])[:, None]
    y = np.concatenate([train.targets, test.targets])
    return x, y, len(train.targets), {"classes": [*"0123456789"]}


def _svhn(name: str, factory: Any, data_root: Path, download: bool) -> _Arrays:
    from scipy.io import loadmat

    listed = [factory.split_list[part][1:] for part in ("train", "test")]
    _fetch(name, factory, data_root, download, {data_root / file: md5 for file, md5 in listed}, _SPLITS)
    train, test = (loadmat(data_root / file) for file, _ in listed)
    x = np.concatenate([train["X"], test["X"]], axis=3).transpose(3, 2, 0, 1)
    y = np.concatenate([train["y"], test["y"]])[:, 0].astype(np.int64) % 10  # 10 stands for the digit 0
    return x, y, len(train["y"]), {"classes": [*"0123456789"]}


def _stl10(name: str, factory: Any, data_root: Path, download: bool) -> _Arrays:
    # without the unlabelled part of 2.8 GB
    listed = (*factory.train_list[:2], *factory.test_list)
    files = {data_root / factory.base_folder / file: md5 for file, md5 in listed}
    _fetch(name, factory, data_root, download, files, _SPLITS)
    train_x, train_y, test_x, test_y = (np.fromfile(file, np.uint8) for file in files)
    x = np.concatenate([train_x, test_x]).reshape(-1, 3, 96, 96).swapaxes(2, 3)  # columns first in the files
    y = np.concatenate([train_y, test_y]).astype(np.int64) - 1
    return x, y, len(train_y), {"classes": _STL10}


def _fetch(
    name: str, factory: Any, data_root: Path, download: bool, files: dict[Path, str],
    parts: Sequence[dict[str, Any]],
) -> None:  # fmt: skip
    """Let torchvision fetch the parts of a set if its files, each with its MD5 sum, are not there as published."""

    def load() -> None:
        for part in parts:
            factory(data_root, download=True, **part)

    fetch(name, lambda: fault_of(files), download, load)


_CIFARS = "(Krizhevsky 2009): `[60000, 3, 32, 32]`, 50,000 for training"
_DIGITS = "`[70000, 1, 28, 28]`, 60,000 for training"
for _row in (
    ("cifar10", "CIFAR10", _cifar, f"CIFAR-10 {_CIFARS}, 10 classes"),
    ("cifar100", "CIFAR100", _cifar, f"CIFAR-100 {_CIFARS}, 100 fine classes; groups: superclasses"),
    ("mnist", "MNIST", _mnist_like, f"MNIST (LeCun et al. 1998): {_DIGITS}, 10 classes"),
    ("fashion_mnist", "FashionMNIST", _mnist_like, f"Fashion-MNIST (Xiao et al. 2017): {_DIGITS}, 10 kinds of clothes"),
    ("kmnist", "KMNIST", _mnist_like, f"Kuzushiji-MNIST (Clanuwat et al. 2018): {_DIGITS}, 10 cursive characters"),
    ("usps", "USPS", _usps, "USPS (Hull 1994): `[9298, 1, 16, 16]` digits of envelopes, 7,291 for training"),
    ("svhn", "SVHN", _svhn, "SVHN (Netzer et al. 2011), cropped: `[99289, 3, 32, 32]` house numbers, 73,257 for "
     "training, without `extra`"),
    ("stl10", "STL10", _stl10, "STL-10 (Coates et al. 2011): `[13000, 3, 96, 96]` photographs with labels, 5,000 for "
     "training, 10 classes"),
):  # fmt: skip
    _register(*_row)
