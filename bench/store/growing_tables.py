"""The tables of a cell while it runs: they grow by one write per version, and are cut back to a checkpoint."""

import csv
import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.store import inside
from bench.store.store import COLUMNS, OPTIONAL, checksum, write_text

if TYPE_CHECKING:
    from bench.federation.federation import Evaluation, Federation


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
