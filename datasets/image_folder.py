"""`image_folder`: a user's own pictures, one folder per class."""

import math
import re
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.data import Dataset
from bench.errors import UserError
from bench.places import check_folder
from bench.plugin import DATASETS
from datasets.assemble import PARTS
from datasets.columns import spellings
from datasets.copies import with_copies
from datasets.pictures import ENDINGS, read_pictures, survey

_NAMED = 3  # skipped files in a note
_FEW = 10  # values up to which a part of the names is rather a camera or a day
_USUAL = (
    re.compile(r"(?i)(?:patient|subject|person|participant|proband|individual|case)s?[ _.-]?[0-9]+"),
    re.compile(r"[^/]*[0-9](?=[ _.-][a-z]*[0-9]+[.][^/]+$)"),  # a number, and after it the picture's
)


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
    subject: str = "",
) -> Dataset:
    """Pictures in `DIR/class/*`, or in `DIR/train/class/*` and `DIR/test/class/*`, as RGB.

    Classes and files are in natural order (`img2` before `img10`), independent of the file system. `DIR/val` (`valid`,
    `validation`) joins the training part; without a test folder a fixed stratified 25 % is held out. What is skipped is
    counted in the notes, and so are equal pictures. Normalisation is computed from the training part unless given.

    Args:
        path: the folder DIR.
        size: height and width to which every picture is resized (bilinear; the aspect ratio is not kept). Without it
            all pictures must have one size.
        groups: whether a further level of folders gives each picture's group: `DIR/group/class/*`, or
            `DIR/train/group/class/*` and `DIR/test/group/class/*`. A group need not have all classes.
        subject: a regular expression that finds in each picture's `class/file`, or `group/class/file`, whom or what it
            is of: its groups together, or all of it. All pictures of a subject are on one side of tests, validation and
            training.

    Raises:
        UserError: a folder is missing or empty, a picture is damaged or has another size, or says of no subject.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise UserError(f"image_folder: size = {size} should be at least 1")
    pictures = _listed(folder, groups)
    n_train = sum(picture.part != "test" for picture in pictures)
    classes = sorted({picture.label for picture in pictures[:n_train]}, key=natural)
    for alike in spellings(classes):
        _check_spellings(folder, alike, pictures[:n_train])
    if strangers := [picture for picture in pictures if picture.label not in classes]:
        raise UserError(f"{strangers[0].file.parent} is a class without a folder in {folder / 'train'}")
    files = [picture.file for picture in pictures]
    tones = survey(files)
    x = read_pictures(files, size, tones)
    y = np.array([classes.index(picture.label) for picture in pictures])
    names = [file.relative_to(folder).as_posix() for file in files]
    paths = ["/".join(filter(None, (p.group, p.label, p.file.name))) for p in pictures]  # alike in all parts
    data = with_copies(
        name or folder.resolve().name, x, y, n_train, "picture", names.__getitem__,
        validation=[place for place, picture in enumerate(pictures) if picture.part == "val"],
        groups=np.array([picture.group for picture in pictures]) if groups else None,
        subjects=np.array(_subjects_of(paths, subject)) if subject else None,
        mean=mean, std=std, classes=classes,
    )  # fmt: skip
    seen = [*tones.notes(), *([] if subject else _unnamed_subjects(paths))]
    read = {*files, *(place for home in {file.parent for file in files} for place in (home, *home.parents))}
    if skipped := [entry.relative_to(folder).as_posix() for entry in _skipped(folder, read)]:
        more = ", ..." if len(skipped) > _NAMED else ""
        seen.append(f"files and folders that are skipped ({len(skipped)}): {', '.join(skipped[:_NAMED])}{more}")
    return replace(data, notes=(*(f"{data.name}: {note}" for note in seen), *data.notes))


def _check_spellings(folder: Path, alike: list[str], pictures: "Sequence[_Picture]") -> None:
    """Refuse classes that differ in spelling alone, unless a folder has several of them, as one of letters may.

    Raises:
        UserError: none has, as where each site calls a class in its own way.
    """
    places = {(picture.label, picture.file.parent.parent) for picture in pictures if picture.label in alike}
    if len({place for _, place in places}) == len(places):
        raise UserError(f"{folder}: the classes {' and '.join(map(repr, alike))} differ only in spelling; use one name")


def natural(name: str) -> tuple[list[tuple[float, str]], str]:
    """Sorting key that reads runs of digits as numbers; numbers come before text."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(run), "") if run[0] in "0123456789" else (math.inf, run) for run in runs], name


class _Picture(NamedTuple):
    file: Path
    label: str
    group: str
    part: str


def _listed(folder: Path, groups: bool) -> list[_Picture]:
    """The pictures for training, then those for validation and for tests, each in natural order."""
    check_folder(folder, remedy="set the option `path` of data set 'image_folder' to the folder of your pictures")
    pictures: list[_Picture] = []
    for place, part in _parts(folder):
        homes = [home for group in (_folders(place) if groups else [place]) for home in _folders(group)]
        if not homes:
            raise UserError(
                f"{place} has no class folders; put the pictures into {place / ('GROUP/CLASS' if groups else 'CLASS')}"
            )
        for home in homes:
            files = [entry for entry in _sorted(home) if entry.suffix.lower() in ENDINGS and entry.is_file()]
            if not files:
                inner = "; if its folders are classes, set `groups: true`" if _folders(home) and not groups else ""
                raise UserError(
                    f"{home} holds no pictures ({', '.join(ENDINGS[:3])}, ...); add some or remove it{inner}"
                )
            group = home.parent.name if groups else ""
            pictures += [_Picture(file, home.name, group, part) for file in files]
    return pictures


def _parts(folder: Path) -> list[tuple[Path, str]]:
    """The folders of the parts train, val and test, in this order; where the folders are classes or groups, all is for
    training."""
    places = [(place, PARTS[place.name.lower()]) for place in _folders(folder) if place.name.lower() in PARTS]
    places = [(place, part) for place, part in places if part != "val" or _sorted(place)]
    names = {part for _, part in places}
    divided = any(_folders(place) for place, part in places if part == "train")  # else `train` is a class beside others
    if "train" in names and ("test" in names or ("val" in names and divided)):
        return sorted(places, key=lambda place: ("train", "val", "test").index(place[1]))
    return [(folder, "train")]


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in _sorted(folder) if entry.is_dir()]


def _sorted(folder: Path) -> list[Path]:
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: natural(entry.name))


def _skipped(folder: Path, read: Set[Path]) -> list[Path]:
    """List what is visible in a folder and was not read, neither a file nor a folder on the way to one."""
    entries = _sorted(folder)
    deeper = [path for entry in entries if entry in read and entry.is_dir() for path in _skipped(entry, read)]
    return [entry for entry in entries if entry not in read] + deeper


def _subjects_of(paths: Sequence[str], expression: str) -> list[str]:
    """Find the subject of each picture.

    Args:
        paths: `class/file` of each picture, or `group/class/file`.
        expression: a regular expression; its groups together are the subject, or all of it where it has no group.

    Raises:
        UserError: it is no regular expression, or does not occur in a path.
    """
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UserError(f"image_folder: subject = {expression!r} is not a regular expression: {error}") from None
    subjects = [_searched(pattern, path) for path in paths]
    if lacking := [path for path, subject in zip(paths, subjects, strict=True) if not subject]:
        raise UserError(
            f"image_folder: subject = {expression!r} finds nothing in {len(lacking)} of {len(paths)} paths, such as "
            f"{lacking[0]!r}; it should match, in each path, whom or what the picture shows"
        )
    return subjects


def _unnamed_subjects(paths: Sequence[str]) -> list[str]:
    """Hint at a part of the files' names by whose repetitions several pictures may be of one subject."""
    folders = len({path.rpartition("/")[0] for path in paths})
    for pattern in _USUAL:
        subjects = [_searched(pattern, path.rpartition("/")[2]) for path in paths]
        if all(subjects) and max(_FEW, folders) < (count := len(set(subjects))) < len(paths):
            return [
                f"the names of {len(paths)} pictures have {count} parts such as {subjects[0]!r}: if they say of whom "
                f"or what a picture is, set the option `subject: '{pattern.pattern}'`; else pictures of one are both "
                "trained on and tested on"
            ]
    return []


def _searched(pattern: re.Pattern[str], path: str) -> str:
    match = pattern.search(path)
    parts = () if match is None else match.groups("") or (match[0],)
    return " ".join(parts) if all(parts) else ""
