"""torchvision's data sets of photographs of many sizes, resized once: GTSRB's traffic signs, Oxford's 102 flowers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.resized import photographs

_FLOWERS = 102
_SIGNS = 43
_ADVICE = "add `--download`, or set `--data-root` to the folder that holds the data sets"


@DATASETS.register("gtsrb")
def gtsrb(
    *, data_root: Path, download: bool, size: PositiveInt = 32, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """GTSRB (Stallkamp et al. 2012): `[n, 3, size, size]` traffic signs of 43 classes, in torchvision's folders.

    Args:
        data_root: holds `gtsrb` with `GTSRB/Training`, `GTSRB/Final_Test/Images` and `GT-final_test.csv`.
        download: fetch what is missing.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: a file is missing or damaged.
    """
    if download:
        from torchvision.datasets import GTSRB

        _fetch("gtsrb", GTSRB, data_root, ("train", "test"))
    folder = data_root / "gtsrb"
    train = sorted((folder / "GTSRB" / "Training").glob("[0-9]*/*.ppm"))
    if not train:
        raise UserError(f"gtsrb: {folder}/GTSRB/Training has no pictures; {_ADVICE}")
    labels = [int(path.parent.name) for path in train]
    test = _answers(folder / "GT-final_test.csv")
    paths = [*train, *(folder / "GTSRB" / "Final_Test" / "Images" / name for name, _ in test)]
    y = np.array([*labels, *(label for _, label in test)])
    cache, classes = data_root / f"gtsrb-{size}.images.npy", [str(label) for label in range(_SIGNS)]
    return photographs("gtsrb", paths, y, len(train), cache, size, classes, mean, std, _ADVICE)


@DATASETS.register("flowers102")
def flowers102(
    *, data_root: Path, download: bool, size: PositiveInt = 64, mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:  # fmt: skip
    """Oxford's 102 flowers (Nilsback and Zisserman 2008): `[8189, 3, size, size]`, 2,040 for training.

    The official validation part joins the training part; both have ten photographs of each flower.

    Args:
        data_root: holds `flowers-102` with `jpg`, `imagelabels.mat` and `setid.mat`.
        download: fetch what is missing.
        size: height and width in pixels.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: a file is missing or damaged.
    """
    from scipy.io import loadmat

    if download:
        from torchvision.datasets import Flowers102

        _fetch("flowers102", Flowers102, data_root, ("train", "val", "test"))
    folder = data_root / "flowers-102"
    try:
        labels = loadmat(folder / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
        parts = loadmat(folder / "setid.mat")
        train = np.concatenate([parts["trnid"].ravel(), parts["valid"].ravel()])
        order = np.concatenate([train, parts["tstid"].ravel()])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"flowers102: the lists in {folder} cannot be read ({error}); {_ADVICE}") from None
    paths = [folder / "jpg" / f"image_{number:05}.jpg" for number in order]
    cache, classes = data_root / f"flowers102-{size}.images.npy", [str(label) for label in range(_FLOWERS)]
    return photographs("flowers102", paths, labels[order - 1], len(train), cache, size, classes, mean, std, _ADVICE)


def _fetch(name: str, factory: Any, data_root: Path, parts: tuple[str, ...]) -> None:
    for part in parts:
        try:
            factory(root=data_root, split=part, download=True)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(f"{name}: the download did not help ({error})") from None


def _answers(file: Path) -> list[tuple[str, int]]:
    """Name and class of each picture of GTSRB's test part."""
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            return [(row["Filename"], int(row["ClassId"])) for row in csv.DictReader(stream, delimiter=";")]
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"gtsrb: {file} cannot be read ({error}); {_ADVICE}") from None
