"""`image_folder`: a user's own pictures, one folder per class."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import DATASETS
from datasets.assemble import assemble, held_out_order

SUFFIXES = (".png", ".jpg", ".jpeg")


@DATASETS.register("image_folder")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    size: int | None = None,
    groups: bool = False,
    name: str = "",
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """Pictures in `DIR/class/*.png|jpg`, or in `DIR/train/class/...` and `DIR/test/class/...`, as RGB.

    Classes and files are in natural order (`img2` before `img10`), independent of the file system. Without a test
    folder a fixed stratified 25 % is held out. Normalisation is computed from the training part unless given.

    Args:
        data_root, download: not used; the pictures are the user's own.
        path: the folder DIR; a relative path starts at the current directory.
        size: height and width to which every picture is resized (bilinear; the aspect ratio is not kept). Without it
            all pictures must have one size.
        groups: whether a further level of folders gives each picture's group: `DIR/group/class/*`, or
            `DIR/train/group/class/*` and `DIR/test/group/class/*`. A group need not have all classes.
        name: name of the data set in reports; the folder's name if empty.
        mean, std: per channel, in units of `x / 255`.

    Raises:
        UserError: a folder is missing or empty, or a picture is damaged or has another size.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise UserError(f"image_folder: size = {size} should be at least 1")
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    look = _grouped if groups else _ungrouped
    train = look(folder / "train" if split else folder)
    test = look(folder / "test") if split else []
    classes = sorted({one.label for one in train}, key=natural)
    if strangers := [one for one in test if one.label not in classes]:
        raise UserError(f"{strangers[0].file.parent} is a class without a folder in {folder / 'train'}")
    x = _read(train, size)
    n_train, rows = len(train), None
    if split:
        x_test = _read(test, size)
        if x_test.shape[1:] != x.shape[1:]:
            raise UserError(_sizes_differ(folder / "test", x_test[0], x[0]))
        x = np.concatenate([x, x_test])
    y = np.array([classes.index(one.label) for one in train + test])
    whose = np.array([one.group for one in train + test])
    if not split:
        rows, n_train = held_out_order(y)
        x, y, whose = x[rows], y[rows], whose[rows]
    return assemble(
        name or folder.resolve().name, x, y, n_train,
        mean=mean, std=std, classes=classes, rows=rows, groups=whose if groups else None,
    )  # fmt: skip


def natural(name: str) -> tuple[list[tuple[float, str]], str]:
    """Sorting key that reads runs of digits as numbers; numbers come before text."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(run), "") if run[0] in "0123456789" else (math.inf, run) for run in runs], name


class _Picture(NamedTuple):
    file: Path
    label: str
    group: str


def _ungrouped(folder: Path, group: str = "") -> list[_Picture]:
    return [_Picture(file, label, group) for label, files in _files(folder).items() for file in files]


def _grouped(folder: Path) -> list[_Picture]:
    """The pictures of each group's folder."""
    groups = [one for one in _sorted(folder) if one.is_dir()] if folder.is_dir() else []
    if not groups:
        raise UserError(f"{folder} has no folders of groups; put the pictures into {folder / 'GROUP' / 'CLASS'}")
    return [picture for group in groups for picture in _ungrouped(group, group.name)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """The pictures of each class; hidden entries and files of other types are ignored."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder. Set the option `path` of data set 'image_folder' to your pictures")
    classes = {one.name: list(_pictures(one)) for one in _sorted(folder) if one.is_dir()}
    if not classes:
        raise UserError(f"{folder} has no class folders; put the pictures into {folder / 'CLASS'}")
    for name, files in classes.items():
        if not files:
            raise UserError(f"{folder / name} holds no pictures ({', '.join(SUFFIXES)}); add some or remove it")
    return classes


def _pictures(folder: Path) -> Iterator[Path]:
    return (file for file in _sorted(folder) if file.suffix.lower() in SUFFIXES and file.is_file())


def _sorted(folder: Path) -> list[Path]:
    return sorted((one for one in folder.iterdir() if not one.name.startswith(".")), key=lambda one: natural(one.name))


def _read(pictures: list[_Picture], size: int | None) -> npt.NDArray[np.uint8]:
    """Pictures `[n, 3, height, width]`."""
    images: list[npt.NDArray[np.uint8]] = []
    for file, _, _ in pictures:
        images.append(picture(file, size))
        if images[-1].shape != images[0].shape:
            raise UserError(_sizes_differ(file, images[-1], images[0]))
    return np.stack(images)


def picture(file: Path, size: int | None) -> npt.NDArray[np.uint8]:
    """One picture `[3, height, width]` as RGB, resized (bilinear) if a size is given.

    Raises:
        UserError: it cannot be read.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow: SyntaxError for a broken PNG
        raise UserError(f"{file} cannot be read as a picture ({error}); replace or remove it") from None
    if size is not None:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).transpose(2, 0, 1)


def _sizes_differ(place: Path, one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> str:
    return (
        f"{place}: a picture of {one.shape[2]} x {one.shape[1]} pixels, others have {other.shape[2]} x "
        f"{other.shape[1]}; set the option `size` to resize them all"
    )
