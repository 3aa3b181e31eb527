"""`csv` and `parquet`: tables of the sites of a consortium, with columns of labels and of sites."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data import Dataset
from bench.errors import UserError, optional
from bench.places import check_file
from bench.plugin import DATASETS
from datasets.columns import COMMA_NUMBER, column_names, numbers, plain, texts
from datasets.hugging_face import is_download
from datasets.image_folder import natural
from datasets.table_rows import dataset_of

if TYPE_CHECKING:
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

_PATH = "set the option `path` to your table"
_SEPARATORS = ",;\t|"
_JSON = (".json", ".jsonl", ".ndjson")
_FROM_JSON = "`pandas.read_json('x.jsonl', lines=True).to_parquet('x.parquet')` makes a table of lines of JSON"
_TABLES = {".csv", ".parquet", ".tsv", ".xls", ".xlsx", ".ods", ".feather", ".gz", ".dta", ".sav", ".sas7bdat"}
"""Endings of files that hold tables, as people send them; most cannot be read here."""
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_POINT = re.compile(r"[-+]?\d*\.\d+([eE][-+]?\d+)?")


@DATASETS.register("parquet")
@DATASETS.register("csv")
def load(
    *,
    data_root: Path,
    download: bool,
    path: str,
    label_column: str,
    site_column: str = "",
    subject_column: str = "",
    part_column: str = "",
    leave_out: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    name: str = "",
) -> Dataset:
    """A table as text (CSV) or in a Parquet file, or a folder with one for each site.

    The first line of a text names the columns. They are separated by commas, semicolons, tabs or `|`; where it is not
    the comma, numbers may have a decimal comma. The text is UTF-8. Features are all columns but those of labels and
    sites and those left out: numbers, and texts with a channel for each category. A fixed 25 % of each site and class
    is held out for tests, or of the subjects where a column names them.

    Args:
        path: the file, or a folder whose files `SITE.csv`, or `SITE.parquet`, have the same columns.
        label_column: column of the classes.
        site_column: column of the sites, which the partition `natural` makes clients; of a folder each file is a site
            if it is empty, of a file there are no sites then.
        subject_column: column that says of whom a row is, where several are of one: all rows of a subject are on one
            side of tests, validation and training. It is no feature.
        part_column: column that says of each row whether it is for `train`, `validation` (which joins training) or
            `test`, as where the tests are of a later year; without it a part of the rows is held out. It is no feature.
        leave_out: columns that are no features.
        categories: columns whose numbers name categories.

    Raises:
        UserError: the file is missing or damaged, a column cannot be read so, which the message names; or pyarrow,
            which reads Parquet, is not installed.
    """
    columns = {"label": label_column, "site": site_column, "subject": subject_column, "part": part_column}
    return read_dataset(path, name, **columns, leave_out=leave_out, categories=categories)


def table(
    frame: "pd.DataFrame",
    *,
    label: str,
    site: str = "",
    subject: str = "",
    part: str = "",
    leave_out: Sequence[str] = (),
    categories: Sequence[str] = (),
    name: str = "table",
) -> Dataset:
    """Make a data set of a table in memory, by the rules of the data set `csv`.

    Args:
        frame: one row for each sample.
        label, site, subject, part, leave_out, categories: names of columns, as the options `label_column` and so on of
            `csv`.
        name: name of the data set in reports.

    Raises:
        UserError: a column cannot be read so; the message names it.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [30, 40, 50, 60] * 10, "ward": ["a", "b"] * 20, "ill": ["no", "yes"] * 20})
        >>> data = table(frame, label="ill", site="ward")
        >>> data.features, data.classes, data.group_names, data.n_train
        (('age',), ('no', 'yes'), ('a', 'b'), 30)
    """
    columns: dict[str, Any] = {"label": label, "site": site, "subject": subject, "part": part}
    return dataset_of(frame, source=name, name=name, **columns, leave_out=leave_out, categories=categories)


def read_dataset(path: str, name: str, **columns: Any) -> Dataset:
    """The data set of a file or of a folder's files; `columns` are as of `dataset_of`."""
    written = [columns[role] for role in ("site", "subject", "text") if role in columns]
    frame, sites = _joined(Path(path), written, columns.get("leave_out", ()))
    return dataset_of(frame, source=path, name=name or Path(path).stem, sites=sites, **columns)


def read_table(file: Path, as_written: Sequence[str] = ()) -> "pd.DataFrame":
    """The rows of a Parquet file, or of a text.

    Args:
        file: the file.
        as_written: columns in which decimal commas stay commas.

    Raises:
        UserError: the file is missing or damaged.
    """
    check_file(file, "table", _PATH)
    if file.suffix.lower() in _JSON:
        raise UserError(f"{file} is no table: {_FROM_JSON}")
    with file.open("rb") as stream:
        parquet = file.suffix.lower() == ".parquet" or stream.read(4) == b"PAR1"
    return _read_parquet(file) if parquet else _read_csv(file, as_written)


@DATASETS.offer("csv", "values")
def column_values(file: Path, numeric: Mapping[str, bool], subject: str) -> tuple[dict[str, list[Any]], list[str]]:
    """Read columns of a table, by name, as numbers or as texts, None where there is none; and the names of others.

    Args:
        file: the table.
        numeric: names of columns, and whether they hold numbers.
        subject: the column that says of whom a row is, of each of which the first row is read; empty if there is none.

    Raises:
        UserError: a column is not there, or holds other than numbers.
    """
    frame = read_table(file)
    if lacking := [name for name in (*numeric, subject) if name and name not in frame.columns]:
        raise UserError(f"{file}: there is no column {lacking[0]!r}, which the bounds or --subject name")
    frame = frame.drop_duplicates(subject) if subject else frame
    read: dict[str, list[Any]] = {}
    for name, of_numbers in numeric.items():
        values = plain(frame[name])
        floats = numbers(values) if of_numbers else None
        if of_numbers and floats is None:
            raise UserError(f"{file}: the column {name!r} holds what is no number, and the bounds give it a range")
        read[name] = list(texts(values)) if floats is None else [None if v != v else v for v in floats.tolist()]
    return read, [str(name) for name in frame.columns if name not in (*numeric, subject)]


def _joined(path: Path, as_written: Sequence[str], leave_out: Sequence[str]) -> tuple["pd.DataFrame", list[str] | None]:
    """The table of a file, or those of a folder's files below each other and the site of each row."""
    import pandas as pd

    if not path.is_dir():
        return read_table(path, as_written), None
    visible = sorted((f for f in path.iterdir() if not f.name.startswith(".")), key=lambda file: natural(file.name))
    by_ending = {ending: [f for f in visible if f.suffix.lower() == ending] for ending in (".csv", ".parquet")}
    ending, files = next(((ending, files) for ending, files in by_ending.items() if files), ("", []))
    if not files:
        json = any(file.suffix.lower() in _JSON for file in visible)
        raise UserError(
            f"{path} has no files that end in .csv or .parquet; put one for each site there: SITE.csv"
            + json * f" ({_FROM_JSON})"
        )
    if unread := [file.name for file in visible if file.suffix.lower() in _TABLES - {ending}]:
        raise UserError(
            f"{path} has files {ending} and {unread[0]!r}, which would be left out: save the tables of all sites as "
            f"{ending}, or move the others elsewhere"
        )
    if is_download(path):
        raise UserError(f"{path} has a file for each part, not for each site: use the data set `hugging_face`")
    frames = {file: read_table(file, as_written) for file in files}
    first = frames[files[0]]
    for file, frame in frames.items():
        if odd := [str(name) for name in first.columns.symmetric_difference(frame.columns) if name not in leave_out]:
            raise UserError(
                f"{files[0]} and {file}: only one of them has a column {odd[0]!r}; give all sites the same columns, or "
                "add it to `leave_out`"
            )
    return pd.concat(list(frames.values()), ignore_index=True), [
        file.stem for file, part in frames.items() for _ in range(len(part))
    ]


def _read_csv(file: Path, as_written: Sequence[str]) -> "pd.DataFrame":
    """A table of texts; decimal commas are written as points, but in the columns `as_written`."""
    import pandas as pd

    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            head = stream.readline()
        headers = {separator: next(csv.reader([head], delimiter=separator), []) for separator in _SEPARATORS}
        separator = max(_SEPARATORS, key=lambda by: len(headers[by]))
        frame = pd.read_csv(
            file, sep=separator, header=None, dtype=str, na_filter=False, encoding="utf-8-sig", skipinitialspace=True
        )
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text; save it as CSV UTF-8") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error, ValueError) as error:
        reason = str(error).replace("Error tokenizing data. C error: ", "")
        raise UserError(f"{file} cannot be read as a table ({reason}); all lines need as many cells") from None
    if frame.shape[1] < 2:
        raise UserError(f"{file} has a single column; separate columns by commas, semicolons, tabs or |")
    frame, names = frame.iloc[1:].reset_index(drop=True), column_names(frame.iloc[0], file)
    if "" in names:
        raise UserError(f"{file}: column {names.index('') + 1} has no name in the first line; give it one")
    frame.columns = pd.Index(names)
    if separator == ",":
        return frame
    read: pd.DataFrame = frame.apply(lambda cells: cells if cells.name in as_written else _with_points(cells))
    return read


def _with_points(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Write decimal commas as points, unless the column has points, too, or thousands may be meant: then nothing says
    what is decimal, and the column is refused as no numbers."""
    texts = [str(value).strip() for value in column]
    if any(map(_POINT.fullmatch, texts)) or not any(map(COMMA_NUMBER.fullmatch, texts)):
        return column
    if any(text.isdigit() for text in texts) and all(_THOUSANDS.fullmatch(text) for text in texts if "," in text):
        return column  # 887 and 1,865: the comma may as well divide thousands
    return column.map(lambda text: text.replace(",", ".") if COMMA_NUMBER.fullmatch(text.strip()) else text)


def _read_parquet(file: Path) -> "pd.DataFrame":
    import pandas as pd

    optional("pyarrow", f"parquet {file}")
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read as a Parquet file ({str(error).splitlines()[0]}); write it again"
        ) from None
    named = [name for name in frame.index.names if name is not None]
    return frame.reset_index() if named else frame
