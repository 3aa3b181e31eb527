"""`image_folder`: a user's own pictures, one folder per class."""

import math
import re
from collections.abc import Sequence
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

_FIRST = (".png", ".jpg", ".jpeg")  # the endings that were read from the beginning
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
        data_root, download: not used; the pictures are the user's own.
        path: the folder DIR; a relative path starts at the current directory.
        size: height and width to which every picture is resized (bilinear; the aspect ratio is not kept). Without it
            all pictures must have one size.
        groups: whether a further level of folders gives each picture's group: `DIR/group/class/*`, or
            `DIR/train/group/class/*` and `DIR/test/group/class/*`. A group need not have all classes.
        name: name of the data set in reports; the folder's name if empty.
        mean, std: per channel, in units of `x / 255`.
        subject: a regular expression that finds in each picture's `class/file`, or `group/class/file`, whom or what it
            is of: its groups together, or all of it. All pictures of a subject are on one side of tests, validation and
            training.

    Raises:
        UserError: a folder is missing or empty, a picture is damaged or has another size, or says of no subject.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise UserError(f"image_folder: size = {size} should be at least 1")
    train, test, skipped = _listed(folder, groups)
    classes = sorted({picture.label for picture in train}, key=natural)
    for alike in spellings(classes):
        _check_spellings(folder, alike, train)
    if strangers := [picture for picture in test if picture.label not in classes]:
        raise UserError(f"{strangers[0].file.parent} is a class without a folder in {folder / 'train'}")
    tones = survey(picture.file for picture in train + test)
    x = read_pictures([picture.file for picture in train + test], size, tones)
    y = np.array([classes.index(picture.label) for picture in train + test])
    names = [picture.file.relative_to(folder).as_posix() for picture in train + test]
    paths = ["/".join(filter(None, (p.group, p.label, p.file.name))) for p in train + test]  # alike in all parts
    data = with_copies(
        name or folder.resolve().name, x, y, len(train), "picture", names.__getitem__,
        validation=[place for place, picture in enumerate(train) if picture.part == "val"],
        groups=np.array([picture.group for picture in train + test]) if groups else None,
        subjects=np.array(_subjects_of(paths, subject)) if subject else None,
        mean=mean, std=std, classes=classes,
    )  # fmt: skip
    seen = [*tones.notes(), *_named(folder, skipped), *([] if subject else _unnamed_subjects(paths))]
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


def _listed(folder: Path, groups: bool) -> tuple[list[_Picture], list[_Picture], list[Path]]:
    """The pictures for training and for tests, the latter empty without such a folder, and what is skipped."""
    check_folder(folder, remedy="set the option `path` of data set 'image_folder' to the folder of your pictures")
    skipped: list[Path] = []
    parts = _parts(folder)
    if not parts:
        return _pictures(folder, "train", groups, skipped), [], skipped
    skipped += _others(_sorted(folder), [place for places in parts.values() for place in places])
    listed = {
        part: [picture for place in places for picture in _pictures(place, part, groups, skipped)]
        for part, places in parts.items()
    }
    return listed["train"] + listed["val"], listed["test"], skipped


def _parts(folder: Path) -> dict[str, list[Path]]:
    """The folders of the parts train, val and test; empty where the folders are classes or groups."""
    parts: dict[str, list[Path]] = {part: [] for part in ("train", "val", "test")}
    for place in _folders(folder):
        if part := PARTS.get(place.name.lower()):
            parts[part].append(place)
    parts["val"] = [place for place in parts["val"] if _sorted(place)]
    divided = any(_folders(place) for place in parts["train"])  # else `train` is a class beside others
    return parts if parts["train"] and (parts["test"] or (parts["val"] and divided)) else {}


def _pictures(folder: Path, part: str, groups: bool, skipped: list[Path]) -> list[_Picture]:
    """The pictures of a part; other entries are added to `skipped`, but for hidden ones."""
    if not groups:
        return _of_classes(folder, part, "", skipped)
    places = _folders(folder)
    if not places:
        raise UserError(f"{folder} has no folders of groups; put the pictures into {folder / 'GROUP' / 'CLASS'}")
    skipped += _others(_sorted(folder), places)
    return [picture for place in places for picture in _of_classes(place, part, place.name, skipped)]


def _of_classes(folder: Path, part: str, group: str, skipped: list[Path]) -> list[_Picture]:
    classes = _folders(folder)
    if not classes:
        raise UserError(f"{folder} has no class folders; put the pictures into {folder / 'CLASS'}")
    skipped += _others(_sorted(folder), classes)
    pictures = []
    for place in classes:
        entries = _sorted(place)
        files = [entry for entry in entries if entry.suffix.lower() in ENDINGS and entry.is_file()]
        if not files:
            inner = "; if its folders are classes, set `groups: true`" if _folders(place) and not group else ""
            raise UserError(f"{place} holds no pictures ({', '.join(_FIRST)}, ...); add some or remove it{inner}")
        skipped += _others(entries, files)
        pictures += [_Picture(file, place.name, group, part) for file in files]
    return pictures


def _others(entries: list[Path], read: list[Path]) -> list[Path]:
    names = set(read)
    return [entry for entry in entries if entry not in names]


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in _sorted(folder) if entry.is_dir()]


def _sorted(folder: Path) -> list[Path]:
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: natural(entry.name))


def _named(folder: Path, skipped: Sequence[Path]) -> list[str]:
    """One line that counts the skipped files and folders and names the first of them; none if there are none."""
    counts = []
    for what, entries in (
        ("file", [entry for entry in skipped if not entry.is_dir()]),
        ("folder", [entry for entry in skipped if entry.is_dir()]),
    ):
        names = ", ".join(entry.relative_to(folder).as_posix() for entry in entries[:_NAMED])
        if entries:
            more = ", ..." if len(entries) > _NAMED else ""
            counts.append(f"{len(entries)} {what}{'s' if len(entries) > 1 else ''} skipped: {names}{more}")
    return ["; ".join(counts)] if counts else []


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
