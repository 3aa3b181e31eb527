"""`tinyimagenet`: 200 classes of ImageNet at 64 x 64 pixels (Le and Yang 2015, CS231n), read from disk as needed."""

from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.image_folder import natural
from datasets.resized import photographs

_NAME = "tinyimagenet"
_FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
_AGAIN = "delete the folder and add `--download` again"
_SIZES = 100_000, 10_000  # pictures of the training part and of the validation part


@DATASETS.register(_NAME)
def load(
    *,
    data_root: Path,
    download: bool,
    resize: PositiveInt = 64,
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """Tiny ImageNet: `[110000, 3, resize, resize]` uint8, in a file that stays on disk; 100,000 for training.

    The official test part has no labels; the validation part takes its place. The first use reads every picture into
    `DATA_ROOT/tiny-imagenet-200-RESIZE.images.npy`: 1.4 GB at 64 pixels, 0.3 GB at 32.

    Args:
        data_root: holds the unpacked folder `tiny-imagenet-200` with `wnids.txt`, `train` and `val`.
        download: fetch the archive (248 MB) if that folder is missing or incomplete.
        resize: height and width in pixels; 32 is the size of CIFAR's pictures.
        mean, std: per channel, in units of `x / 255`; computed from the training part unless given.

    Raises:
        UserError: pictures are missing or damaged.
    """
    folder = data_root / _FOLDER
    if fault := _fault(folder):
        _fetch(data_root, fault, download)
    classes = sorted((folder / "wnids.txt").read_text().split())
    train, test = _train(folder), _validation(folder)
    paths = [path for path, _ in train + test]
    labels = {wnid: label for label, wnid in enumerate(classes)}
    y = np.array([labels[wnid] for _, wnid in train + test])
    cache = data_root / f"{_FOLDER}-{resize}.images.npy"
    return photographs(_NAME, paths, y, len(train), cache, resize, classes, mean, std, _AGAIN)


def _fault(folder: Path) -> str:
    """A phrase that names what is missing from the folder; empty if nothing is."""
    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    if missing := [file for file in lists if not file.is_file()]:
        return f"{missing[0]} is missing"
    for part, pictures, size in zip(("train", "val"), (_train(folder), _validation(folder)), _SIZES, strict=True):
        if len(pictures) != size:
            return f"{folder / part} holds {len(pictures)} pictures instead of {size}"
    return ""


def _fetch(data_root: Path, fault: str, download: bool) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    if not download:
        raise UserError(
            f"{_NAME}: {fault}; add `--download` to fetch 248 MB, or set `--data-root` to the folder that holds "
            f"'{_FOLDER}'"
        )
    try:
        download_and_extract_archive(URL, str(data_root), md5=MD5)
    except (RuntimeError, OSError) as error:
        raise UserError(f"{_NAME}: {fault}; the download did not help ({error})") from None
    if fault := _fault(data_root / _FOLDER):
        raise UserError(f"{_NAME}: {fault}; {_AGAIN}")


def _train(folder: Path) -> list[tuple[Path, str]]:
    """Pictures with their WordNet ids, in natural order."""
    files = (folder / "train").glob("*/images/*.JPEG")
    return [(path, path.parts[-3]) for path in sorted(files, key=lambda path: natural(path.name))]


def _validation(folder: Path) -> list[tuple[Path, str]]:
    """Validation pictures with their WordNet ids, in the order of the annotations.

    A line of these holds name, WordNet id and a bounding box, separated by tabs.
    """
    lines = (folder / "val" / "val_annotations.txt").read_text().splitlines()
    rows = [line.split("\t")[:2] for line in lines]
    pictures = [(folder / "val" / "images" / name, wnid) for name, wnid in rows]
    return [(path, wnid) for path, wnid in pictures if path.is_file()]
