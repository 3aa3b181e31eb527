"""Rows of a table for a model that was trained on another: the same columns, read by the same rules."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.data import Array
from bench.errors import LISTED_NAMES, UserError, did_you_mean
from bench.plugin import DATASETS
from datasets.columns import column_names, encode, infinite, numbers, plain, present, texts, without_gaps
from datasets.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

_ALL_ZERO = "(all of its channels are 0)"


@DATASETS.offer("csv", "rows")
def samples(rows: "pd.DataFrame | Path | str", table: Mapping[str, Any]) -> tuple[Array, list[str]]:
    """Encode rows as a table's encoder did in training.

    Args:
        rows: a table, or a file of one.
        table: `Dataset.table`.

    Returns:
        Samples `[rows, features]`, float64, nan where a number is missing; and notes on what the model did not know.

    Raises:
        UserError: a column is missing, or a value cannot be read; the message names row and column.
    """
    source, frame = (str(rows), read_table(Path(rows))) if isinstance(rows, str | Path) else ("rows", rows)
    names = column_names(frame.columns, source)
    wanted = {column["name"]: column for column in table["columns"]}
    if missing := [name for name in wanted if name not in names]:
        listed = f" It has {', '.join(names)}." if len(names) <= LISTED_NAMES else ""
        hint = did_you_mean(missing[0], names) or listed
        raise UserError(
            f"{source}: there is no column {missing[0]!r}, which the model takes ({len(missing)} of {len(wanted)} are "
            f"missing).{hint}"
        )
    if not len(frame):
        raise UserError(f"{source} has no rows")
    notes = []
    if strange := [name for name in names if name not in (*wanted, *table["ignored"])]:
        notes.append(f"{source}: columns that the model does not take: {', '.join(strange)}")
    columns: dict[str, Any] = {}
    for name, column in wanted.items():
        values = without_gaps(plain(frame.iloc[:, names.index(name)]))
        if column["kind"] == "number":
            columns[name] = "number", _numbers(values, source, name)
        else:
            columns[name] = "category", texts(values)
            notes += _unknown(columns[name][1], column["categories"], f"{source}: column {name!r}")
    return encode(table["columns"], columns), notes


def _numbers(values: Array, source: str, name: str) -> Array:
    floats = numbers(values)
    if floats is None:
        bad = [row for row in range(len(values)) if numbers(values[row : row + 1]) is None]
    else:
        bad = np.flatnonzero(infinite(floats)).tolist()
    if floats is None or bad:
        row = bad[0]
        raise UserError(
            f"{source}: row {row + 1}, column {name!r}: {str(values[row])[:40]!r} is not a number, or infinite or "
            "huge; write a number with a decimal point, or leave the cell empty"
        )
    return floats


def _unknown(values: Array, categories: list[str | None], where: str) -> list[str]:
    """Notes on categories that were nowhere in training, whose channels are all 0."""
    notes = []
    for value in dict.fromkeys(present(values)):
        if value not in categories:
            at = [row for row, other in enumerate(values) if other == value]
            more = f" and {len(at) - 1} more" if len(at) > 1 else ""
            hint = did_you_mean(value, [name for name in categories if name])
            notes.append(f"{where}: {value!r} (row {at[0] + 1}{more}) is no category of training {_ALL_ZERO}.{hint}")
    empty = [row for row, value in enumerate(values) if value is None]
    if empty and None not in categories:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        notes.append(f"{where}: empty in row {empty[0] + 1}{more}, and nowhere in training {_ALL_ZERO}")
    return notes
