"""`hugging_face`: data as Hugging Face's package `datasets` downloads and saves them, read without that package.

That package has the name of this one, so they cannot live in one environment. They need not: all that it writes are
Parquet and Arrow files. Their schema says which columns hold pictures and what the classes are called.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PositiveInt

from bench.data import Array, Dataset
from bench.errors import LISTED_NAMES, UserError, did_you_mean, optional
from bench.places import check_file, check_folder
from bench.plugin import DATASETS
from datasets.assemble import PARTS
from datasets.copies import with_copies
from datasets.image_folder import natural
from datasets.pictures import EncodedPicture, read_pictures, survey
from datasets.table_rows import dataset_of

if TYPE_CHECKING:
    import pandas as pd

_ENDINGS = (".parquet", ".arrow")
_PART = "part of its file"  # column of a table that is made here
_NAMED = 3  # files in a note


@DATASETS.register("hugging_face")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    label_column: str = "label",
    site_column: str = "",
    subject_column: str = "",
    leave_out: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    size: PositiveInt | None = None,
    name: str = "",
    mean: list[float] | None = None,
    std: list[float] | None = None,
) -> Dataset:
    """Pictures or a table in a folder of Hugging Face: Parquet files of a download, or Arrow files of `save_to_disk`.

    The names of files or of their folders say which part they are, as in `train-00000-of-00001.parquet` or
    `test/data-00000-of-00001.arrow`. The validation part joins the training part; without a test part a fixed 25 % is
    held out, as it is where no row of the test part has a label. If a column holds pictures, they are the samples, as
    RGB, and other columns are not used; else all columns are features, as those of the data set `parquet`. Classes of
    pictures are numbered as in the schema.

    Args:
        path: the folder, or one of its files.
        label_column, site_column, subject_column, categories: as of `csv`.
        leave_out: columns that are not used, such as a second column of pictures.
        size: height and width to which every picture is resized; without it all must have one size.

    Raises:
        UserError: pyarrow is not installed, the folder has no such files or those of several data sets, or a column or
            a picture cannot be read.
    """
    folder = Path(path)
    files, skipped = shards(folder)
    if not files:
        raise UserError(f"{folder} has no files that end in {' or '.join(_ENDINGS)}, as a download of Hugging Face has")
    columns, parts, pictures, classes = read_shards(
        folder, files, (label_column, site_column, subject_column), leave_out
    )
    name = name or (folder.stem if folder.is_file() else folder.resolve().name)
    if not pictures:
        if size or mean or std:
            raise UserError(f"{folder} has no column of pictures, which `size`, `mean` and `std` are for")
        frame, part = frame_of(columns, parts)
        data = dataset_of(
            frame, source=path, name=name, label=label_column, site=site_column, subject=subject_column, part=part,
            categories=categories,
        )  # fmt: skip
    else:
        files_of_pictures = _filled(folder, pictures, columns[pictures])
        tones = survey(files_of_pictures)
        x = read_pictures(files_of_pictures, size, tones)
        order = np.argsort([part == "test" for part in parts], kind="stable")
        labels = _filled(folder, label_column, columns[label_column])
        y = np.array([classes.index(label) for label in labels] if classes else labels)
        owners = {
            what: _named(_filled(folder, column, columns[column]))[order]
            for what, column in (("groups", site_column), ("subjects", subject_column))
            if column
        }
        data = with_copies(
            name, x[order], y[order], len(order) - parts.count("test"), "picture",
            lambda place: f"row {order[place] + 1}",
            validation=np.flatnonzero(np.array(parts)[order] == "val").tolist(), classes=classes, mean=mean, std=std,
            **owners,
        )  # fmt: skip
        data = replace(data, notes=(*(f"{name}: {note}" for note in tones.notes()), *data.notes))
    if skipped:
        listed = ", ".join(str(file.relative_to(folder)) for file in skipped[:_NAMED])
        more = f"{name}: {len(skipped)} files of no known part are not read: {listed}"
        data = replace(data, notes=(more, *data.notes))
    return data


@DATASETS.offer("hugging_face", "recognised")
def is_download(folder: Path) -> bool:
    """Whether a folder has files that are named as those of Hugging Face: each as a part, one of them for training."""
    parts = [_part(file.relative_to(folder)) for file in _files(folder)]
    return "train" in parts and all(parts)


def shards(folder: Path) -> tuple[dict[Path, str], list[Path]]:
    """Find the files of a folder of Hugging Face, each with its part (train, val or test), and those of other parts.

    In place of the folder there may be a single file, whose rows are all for training.

    Raises:
        UserError: it is no folder and no such file, or has files of several data sets.
    """
    if folder.suffix in _ENDINGS and not folder.is_dir():
        return {check_file(folder): "train"}, []
    check_folder(folder, remedy="set the option `path` to the folder of a download")
    files = sorted(_files(folder), key=lambda file: natural(file.relative_to(folder).as_posix()))
    parts = {file: _part(file.relative_to(folder)) for file in files}
    if not any(parts.values()):
        return dict.fromkeys(files, "train"), []
    known = {file: part for file, part in parts.items() if part}
    homes = {file.parent.parent if file.parent.name.lower() in PARTS else file.parent for file in known}
    if len(homes) > 1:
        listed = ", ".join(sorted(str(home) for home in homes)[:_NAMED])
        raise UserError(f"{folder} has several data sets; set `path` to one of {listed}")
    return known, [file for file, part in parts.items() if not part]


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in _ENDINGS and not file.name.startswith("cache-")]


def _part(file: Path) -> str:
    """The part that a file's name says, or else the folder that it lies in; empty if none does."""
    words = [*re.findall("[a-z]+", file.stem.lower())[::-1], file.parent.name.lower()]
    return next((PARTS[word] for word in words if word in PARTS), "")


def frame_of(columns: dict[str, list[Any]], parts: list[str]) -> tuple["pd.DataFrame", str]:
    """A table of values by column, and its column of parts, if there are tests."""
    import pandas as pd

    part = _PART if "test" in parts else ""
    return pd.DataFrame(columns | ({_PART: parts} if part else {})), part


def read_shards(
    folder: Path, files: dict[Path, str], needed: Sequence[str], leave_out: Sequence[str]
) -> tuple[dict[str, list[Any]], list[str], str, list[str]]:
    """Values by column, the part of each row, the column of pictures, if there is one, and the schema's classes of the
    labels in their order; a column of classes holds their names."""
    pa = optional("pyarrow", f"hugging_face {folder}")
    tables = {file: _table(file) for file in files}
    schema = next(iter(tables.values())).schema
    for file, table in tables.items():
        if table.schema.names != schema.names:
            raise UserError(f"{file} has the columns {', '.join(table.schema.names)}, unlike others of {folder}")
    for column in [*filter(None, needed), *leave_out]:
        if column not in schema.names:
            hint = did_you_mean(column, schema.names) or f" There are {', '.join(schema.names[:LISTED_NAMES])}."
            raise UserError(f"{folder}: there is no column {column!r}.{hint}")
        if column in needed and (column in leave_out or pa.types.is_nested(schema.field(column).type)):
            raise UserError(
                f"{folder}: the column {column!r} is in `leave_out`, or holds lists or structures; labels, sites and "
                "subjects are texts or numbers"
            )
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    pictures = [
        field.name
        for field in schema
        if field.name not in leave_out
        and pa.types.is_struct(field.type)
        and {child.name for child in field.type} == {"bytes", "path"}
        and features.get(field.name, {}).get("_type", "Image") == "Image"
    ]
    if len(pictures) > 1:
        raise UserError(f"{folder}: {' and '.join(pictures)} hold pictures; add all but one to `leave_out`")
    used = [*pictures, *filter(None, needed)] if pictures else [n for n in schema.names if n not in leave_out]
    columns: dict[str, list[Any]] = {column: [] for column in used}
    parts: list[str] = []
    for file, table in tables.items():
        rows = {column: _values(file, column, table[column].to_pylist(), features) for column in used}
        if files[file] == "test" and not any(label is not None for label in rows[needed[0]]):
            continue  # a competition's tests have no labels
        for column in used:
            columns[column] += rows[column]
        parts += [files[file]] * table.num_rows
    classes = features.get(needed[0], {}).get("names", [])
    return columns, parts, pictures[0] if pictures else "", classes


def _table(file: Path) -> Any:
    pa = optional("pyarrow", f"hugging_face {file}")
    try:
        if file.suffix == ".parquet":
            return optional("pyarrow.parquet", f"hugging_face {file}").read_table(file)
        with pa.OSFile(str(file)) as source:
            return pa.ipc.open_stream(source).read_all()
    except (OSError, ValueError) as error:  # those of pyarrow are derived from these
        raise UserError(f"{file} cannot be read ({str(error).splitlines()[0]}); download it again") from None


def _values(file: Path, column: str, values: list[Any], features: dict[str, Any]) -> list[Any]:
    """Values of a column: names in place of the numbers of classes, and pictures with the place that they are from."""
    feature = features.get(column, {})
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names", [])
        if (most := max((value for value in values if value is not None), default=-1)) >= len(names):
            raise UserError(f"{file}: the column {column!r} has label {most}, but its schema has {len(names)} classes")
        return [None if value is None or value < 0 else names[value] for value in values]
    return [_source(file, row, value) for row, value in enumerate(values)]


def _source(file: Path, row: int, value: Any) -> Any:
    """The file of a picture, its bytes, or None where there is neither; other values as they are."""
    if not (isinstance(value, dict) and value.keys() == {"bytes", "path"}):
        return value
    if value["bytes"] is not None:
        return EncodedPicture(f"{file}, row {row + 1}", value["bytes"])
    return file.parent / value["path"] if value["path"] else None


def _named(owners: list[Any]) -> Array:
    """Sites or subjects as numbers if all are whole numbers, so that they are in that order; else as texts."""
    return np.array(owners if all(type(owner) is int for owner in owners) else [*map(str, owners)])


def _filled(folder: Path, column: str, values: list[Any]) -> list[Any]:
    """The values of a column that may have no gap.

    Raises:
        UserError: it has some.
    """
    if gaps := [row for row, value in enumerate(values) if value is None]:
        raise UserError(f"{folder}: the column {column!r} is empty in {len(gaps)} rows (the first: row {gaps[0] + 1})")
    return values
