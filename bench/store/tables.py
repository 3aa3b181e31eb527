"""The tables of a cell: while it runs they grow by one write per version, and are cut back to a checkpoint; read, they
are data frames."""

import csv
import io
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.store import inside
from bench.store.store import COLUMNS, EVALUATED, OPTIONAL, checksum, write_text

if TYPE_CHECKING:
    import pandas as pd

    from bench.federation.federation import Evaluation, Federation

_TABLES = {**COLUMNS, "evaluated": EVALUATED}

_TEXTS = ("metric", "on", "mean", "split", "quantity", "bits", "kind")
"""Columns of words; all others hold numbers."""


class Tables:
    """The growing tables of a cell, `<name>.csv` each. Floats are written by `repr`: equal values, equal bytes.

    Args:
        folder: the cell's folder.
        optional: names of the optional tables that it has.
    """

    def __init__(self, folder: Path, optional: Collection[str] = ()) -> None:
        self._folder = folder
        self._names = [name for name in COLUMNS if name in optional or name not in OPTIONAL]

    def restart(self) -> None:
        """Leave only the headers."""
        self._begin(self._names)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.csv"

    def _begin(self, names: Iterable[str]) -> None:
        """Leave only the headers of some tables, and none of those that the cell does not have."""
        for name in names:
            write_text(self._path(name), ",".join(COLUMNS[name]) + "\n")
        for name in COLUMNS.keys() - self._names:
            self._path(name).unlink(missing_ok=True)

    def append(self, name: str, version: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of one version with a single write.

        Raises:
            ValueError: a row has a column that the table lacks, or lacks one.
        """
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row in rows:
            full = {"round": version, **row}
            if set(full) != set(COLUMNS[name]):
                raise ValueError(f"a row of {name}.csv needs {COLUMNS[name]}, got {tuple(full)}")
            writer.writerow(full[column] for column in COLUMNS[name])
        with inside.append(self._path(name)) as file:
            file.write(buffer.getvalue())

    def append_version(self, federation: "Federation") -> list[dict[str, Any]]:
        """Add the lines of the version that has just ended, and return those of the ledger."""
        version = federation.version
        traffic = [row for row in federation.ledger if row["round"] == version]
        self.append("ledger", version, traffic)
        self.append("work", version, [federation.work])
        if federation.spans:
            self.append("timeline", version, [{"round": version} | span._asdict() for span in federation.spans])
        return traffic

    def append_evaluation(self, version: int, evaluation: "Evaluation") -> None:
        """Add the lines of a version's evaluation."""
        self.append("metrics", version, evaluation.metrics)
        self.append("clients", version, evaluation.clients)
        self.append("hits", version, evaluation.hits)
        for name in OPTIONAL:
            if name in self._names:
                self.append(name, version, getattr(evaluation, name))

    def sync(self) -> dict[str, list[Any]]:
        """Bring all tables to the disk and return their sizes in bytes and checksums."""
        marks = {}
        for name in self._names:
            path = self._path(name)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                marks[name] = [os.fstat(file.fileno()).st_size, checksum(path)]
        return marks

    def cut(self, marks: Mapping[str, Sequence[Any]]) -> bool:
        """Cut every table back to a checkpoint; False (and nothing cut) where one is shorter or other than it was.

        The checkpoint may be of a time when the cell was asked for other scores: what it has of them stays, and tables
        that it lacks begin here.
        """
        needed = COLUMNS.keys() - OPTIONAL
        if not needed <= marks.keys() <= COLUMNS.keys() or not all(self._path(name).exists() for name in marks):
            return False
        if any(checksum(self._path(name), size) != known for name, (size, known) in marks.items()):
            return False
        for name, (size, _) in marks.items():
            os.truncate(self._path(name), size)
        new = [name for name in self._names if name not in marks]
        self._names = [name for name in COLUMNS if name in self._names or name in marks]
        self._begin(new)
        return True


def read_table(folder: Path, name: str) -> "pd.DataFrame":
    """Read a table of a cell, without a line that is still being written; empty where there is none."""
    return read_tables([folder], name)[0]


def read_tables(folders: Iterable[Path], name: str) -> "tuple[pd.DataFrame, list[int]]":
    """Read the tables of several cells, one below another, and the number of rows of each.

    Many small tables are read at once, because each call of pandas takes about as long as a thousand rows.
    """
    import pandas as pd

    folders = list(folders)
    files = [folder / f"{name}.csv" for folder in folders]
    texts = [_whole_lines(file) for file in files]
    try:
        frames = [
            _parsed("".join([f"{head}\n", *(rows for _, _, rows in same)]), name)
            for head, same in itertools.groupby((text.partition("\n") for text in texts if text), lambda part: part[0])
        ]
    except ValueError as error:
        if len(files) > 1:
            for folder in folders:
                read_table(folder, name)  # one of them raises the error
        problem = " ".join(str(error).split())
        raise UserError(f"{files[0]} is damaged: no table of {', '.join(_TABLES[name])} ({problem})") from None
    whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(_TABLES[name]))
    return whole, [max(0, text.count("\n") - 1) for text in texts]


def read_new(folder: Path, name: str, offset: int) -> "tuple[pd.DataFrame, int]":
    """The rows of a growing table from `offset` bytes on, without a line that is being written, and the next offset."""
    text = _whole_lines(folder / f"{name}.csv", offset)
    lines = text if offset else text.partition("\n")[2]
    return _parsed(f"{','.join(_TABLES[name])}\n{lines}", name), offset + len(text.encode())


def _whole_lines(path: Path, offset: int = 0) -> str:
    try:
        text = inside.read_bytes(path)[offset:].decode()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not text in UTF-8 (byte {error.start})") from None
    return text[: text.rfind("\n") + 1]


def _parsed(text: str, name: str) -> "pd.DataFrame":
    import pandas as pd

    exact: dict[str, Callable[[str], Any]] = {
        column: float for column in ("value", "seconds", "settled", "start", "end") if column in _TABLES[name]
    }
    if "bits" in _TABLES[name]:  # which may look like a number
        exact["bits"] = str
    # "" is a name here (the mean of a pooled figure), not a missing value; `float` reads back exactly what was written
    frame = pd.read_csv(io.StringIO(text), keep_default_na=False, converters=exact)
    if frame.columns[0] != "round" or not set(frame.columns) <= set(_TABLES[name]):
        raise ValueError(f"its columns are {', '.join(map(str, frame.columns))[:80]}")
    numbers = [column for column in frame.columns if column not in _TEXTS] if len(frame) else []
    if words := [column for column in numbers if frame[column].dtype.kind not in "iuf"]:
        raise ValueError(f"no numbers in column {words[0]}")
    return frame
