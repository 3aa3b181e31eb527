"""Photographs, resized once into a file that is read as needed: GTSRB's traffic signs, Oxford's 102 flowers, Tiny
ImageNet, iNaturalist 2017.
"""

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, held_out_order
from datasets.image_folder import natural
from datasets.published import ADVICE, fetch, reading
from datasets.resized import photographs, resized

TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
TINY_SIZES = 100_000, 10_000  # pictures of the training part and of the validation part
_TINY = "tiny-imagenet-200"
_INATURALIST = "2017"
_FLOWERS = 102
_SIGNS = 43


@DATASETS.register("gtsrb")
def gtsrb(
    *, data_root: Path, download: bool, size: PositiveInt = 32, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """GTSRB (Stallkamp et al. 2012): `[n, 3, size, size]` traffic signs of 43 classes, in torchvision's folders.

    Args:
        data_root: holds `gtsrb` with `GTSRB/Training`, `GTSRB/Final_Test/Images` and `GT-final_test.csv`.
    """
    _fetch("gtsrb", "GTSRB", data_root, ("train", "test"), download)
    folder = data_root / "gtsrb"
    train = sorted((folder / "GTSRB" / "Training").glob("[0-9]*/*.ppm"))
    if not train:
        raise UserError(f"gtsrb: {folder}/GTSRB/Training has no pictures; {ADVICE}")
    labels = [int(path.parent.name) for path in train]
    answers = folder / "GT-final_test.csv"
    with reading("gtsrb", answers, ADVICE), answers.open(newline="", encoding="utf-8") as stream:
        test = [(row["Filename"], int(row["ClassId"])) for row in csv.DictReader(stream, delimiter=";")]
    paths = [*train, *(folder / "GTSRB" / "Final_Test" / "Images" / name for name, _ in test)]
    y = np.array([*labels, *(label for _, label in test)])
    cache, classes = data_root / f"gtsrb-{size}.images.npy", [str(label) for label in range(_SIGNS)]
    return photographs("gtsrb", paths, y, len(train), cache, size, classes, mean, std, ADVICE)


@DATASETS.register("flowers102")
def flowers102(
    *, data_root: Path, download: bool, size: PositiveInt = 64, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """Oxford's 102 flowers (Nilsback and Zisserman 2008): `[8189, 3, size, size]`, 2,040 for training.

    The official validation part joins the training part; both have ten photographs of each flower.

    Args:
        data_root: holds `flowers-102` with `jpg`, `imagelabels.mat` and `setid.mat`.
    """
    from scipy.io import loadmat

    _fetch("flowers102", "Flowers102", data_root, ("train", "val", "test"), download)
    folder = data_root / "flowers-102"
    with reading("flowers102", folder, ADVICE):
        labels = loadmat(folder / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
        parts = loadmat(folder / "setid.mat")
        train = np.concatenate([parts["trnid"].ravel(), parts["valid"].ravel()])
        order = np.concatenate([train, parts["tstid"].ravel()])
    paths = [folder / "jpg" / f"image_{number:05}.jpg" for number in order]
    cache, classes = data_root / f"flowers102-{size}.images.npy", [str(label) for label in range(_FLOWERS)]
    return photographs("flowers102", paths, labels[order - 1], len(train), cache, size, classes, mean, std, ADVICE)


def _fetch(name: str, of_torchvision: str, data_root: Path, parts: tuple[str, ...], download: bool) -> None:
    """Let torchvision fetch what is missing of each part, if the user allows it."""
    from torchvision import datasets

    for part in parts if download else ():
        with reading(name, data_root, "the download did not help"):
            getattr(datasets, of_torchvision)(root=data_root, split=part, download=True)


@DATASETS.register("tinyimagenet")
def tinyimagenet(
    *,
    data_root: Path,
    download: bool,
    resize: PositiveInt = 64,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """Tiny ImageNet (Le and Yang 2015, CS231n): `[110000, 3, resize, resize]` uint8, 100,000 for training.

    The official test part has no labels; the validation part takes its place. The first use reads every picture into
    `DATA_ROOT/tiny-imagenet-200-RESIZE.images.npy`: 1.4 GB at 64 pixels, 0.3 GB at 32.

    Args:
        data_root: holds the unpacked folder `tiny-imagenet-200` with `wnids.txt`, `train` and `val`.
        resize: height and width in pixels; 32 is the size of CIFAR's pictures.
    """
    folder = data_root / _TINY
    fetch("tinyimagenet", lambda: _tiny_fault(folder), download, lambda: _unpack_tiny(data_root))
    classes = sorted((folder / "wnids.txt").read_text().split())
    train, test = _tiny_train(folder), _tiny_validation(folder)
    paths = [path for path, _ in train + test]
    labels = {wnid: label for label, wnid in enumerate(classes)}
    y = np.array([labels[wnid] for _, wnid in train + test])
    cache = data_root / f"{_TINY}-{resize}.images.npy"
    return photographs("tinyimagenet", paths, y, len(train), cache, resize, classes, mean, std, ADVICE)


def _tiny_fault(folder: Path) -> str:
    """A phrase that names what is missing from the folder; empty if nothing is."""
    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    if missing := [file for file in lists if not file.is_file()]:
        return f"{missing[0]} is missing"
    lists_of_parts = _tiny_train(folder), _tiny_validation(folder)
    for part, pictures, size in zip(("train", "val"), lists_of_parts, TINY_SIZES, strict=True):
        if len(pictures) != size:
            return f"{folder / part} holds {len(pictures)} pictures instead of {size}"
    return ""


def _unpack_tiny(data_root: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(TINY_URL, str(data_root), md5=TINY_MD5)


def _tiny_train(folder: Path) -> list[tuple[Path, str]]:
    """Pictures with their WordNet ids, in natural order."""
    files = (folder / "train").glob("*/images/*.JPEG")
    return [(path, path.parts[-3]) for path in sorted(files, key=lambda path: natural(path.name))]


def _tiny_validation(folder: Path) -> list[tuple[Path, str]]:
    """Validation pictures with their WordNet ids, in the order of the annotations.

    A line of these holds name, WordNet id and a bounding box, separated by tabs.
    """
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    rows = [line.split("\t")[:2] for line in lines]
    pictures = [(folder / "val" / "images" / name, wnid) for name, wnid in rows]
    return [(path, wnid) for path, wnid in pictures if path.is_file()]


@DATASETS.register("inaturalist2017")
def inaturalist2017(
    *,
    data_root: Path,
    download: bool,
    labels: Literal["super", "full"] = "super",
    size: PositiveInt = 64,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """iNaturalist 2017 (Van Horn et al. 2018): `[675170, 3, size, size]` uint8, in a file that stays on disk.

    torchvision does not provide the official split, so a fixed stratified 25 % is the test part.

    The first use resizes every photograph (bilinear; the aspect ratio is not kept) into
    `DATA_ROOT/2017-SIZE.images.npy`: 8.3 GB at 64 pixels. Both kinds of labels share the file.

    Args:
        data_root: holds torchvision's folder `2017/SUPER-CATEGORY/CATEGORY/*.jpg`.
        labels: `super` for the 13 super-categories, `full` for the 5,089 categories.
    """
    listed = _inaturalist(data_root, download)
    files = sorted(listed.index, key=lambda file: (file[0], natural(file[1])))
    category = np.array([number for number, _ in files])
    order, n_train = held_out_order(category)
    category = category[order]
    paths = [Path(listed.root, listed.all_categories[files[i][0]], files[i][1]) for i in order]
    cache = data_root / f"{_INATURALIST}-{size}.images.npy"
    x, about = resized("inaturalist2017", paths, size, cache, n_train)
    if labels == "full":
        y, classes = category, list(listed.all_categories)
    else:
        supers = np.array([category_map["super"] for category_map in listed.categories_map])
        y, classes = supers[category], list(listed.categories_index["super"])
    return assemble(
        f"inaturalist2017-{labels}", x, y, n_train,
        mean=mean or about["mean"], std=std or about["std"], classes=classes, checksum=f"{about['checksum']}-{labels}",
    )  # fmt: skip


def _inaturalist(data_root: Path, download: bool) -> Any:
    from torchvision.datasets import INaturalist

    folder = data_root / _INATURALIST
    if not folder.is_dir() and not download:
        raise UserError(f"inaturalist2017: {folder} is missing (its archive has 186 GB); {ADVICE}")
    with reading("inaturalist2017", folder, ADVICE):
        return INaturalist(str(data_root), version=_INATURALIST, download=not folder.is_dir())
