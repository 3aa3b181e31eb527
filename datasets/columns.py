"""Columns of a table: numbers and categories, what cannot be a feature, and how they become features."""

import datetime
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.data import Array, Floats, Indices
from bench.errors import UserError

ColumnKind = Literal["number", "category"]
Columns = Mapping[str, tuple[ColumnKind, Array]]
"""Features of a table in their order: kind, and values `[rows]`: floats with NaN, or texts with None."""

MOST_CATEGORIES = 100
_MISSING = {"", "na", "n/a", "#n/a", "nan", "<na>", "null"}
_FEATURE_MISSING = _MISSING | {"none", "?"}  # in a label or a site's name these may be meant
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf(inity)?", re.IGNORECASE)
_NAME_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?")  # 8e31415926 rather is a key in hexadecimal
COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?")
_FAR = 1000.0  # standard deviations
_FEW = 20  # rows, up to which numbers that count upwards may be a measurement


def column_names(names: Iterable[Any], source: object) -> list[str]:
    """Names of a table's columns without blanks around them.

    Raises:
        UserError: two columns have one name.
    """
    stripped = [str(name).strip() for name in names]
    if twice := [name for name in stripped if stripped.count(name) > 1]:
        count = stripped.count(twice[0])
        raise UserError(f"{source}: there are {count} columns {twice[0]!r}; give each a name of its own")
    return stripped


def plain(values: Iterable[Any]) -> Array:
    """Values `[rows]` as Python objects: texts without blanks around them, None where there is none."""
    out = np.empty(len(values := list(values)), object)
    for row, value in enumerate(values):
        value = value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
        if isinstance(value, str):
            value = value.strip()
            value = None if value.lower() in _MISSING else value
        elif type(value).__name__ in ("NaTType", "NAType") or (isinstance(value, float) and math.isnan(value)):
            value = None
        out[row] = value
    return out


def present(values: Array) -> Array:
    """The values that are there."""
    held: Array = values[np.array([value is not None for value in values], bool)]
    return held


def numbers(values: Array) -> Floats | None:
    """Values as floats `[rows]`, NaN where there is none; None if one that is there is no number."""
    if not all(isinstance(value, int | float) or _NUMBER.fullmatch(str(value)) for value in present(values)):
        return None
    return np.array([math.nan if value is None else float(value) for value in values], float)


def texts(values: Array) -> Array:
    """Values as texts `[rows]`, whole numbers without a point; None where there is none."""
    whole = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    return np.array([None if value is None else str(value) for value in whole], object)


def spellings(values: Iterable[str]) -> list[list[str]]:
    """Groups of texts that differ in capital letters, blanks or the encoding of accents alone, or are one number."""
    alike: dict[str | Decimal, set[str]] = defaultdict(set)
    for value in values:
        plain_text = " ".join(unicodedata.normalize("NFKC", value).casefold().split())
        alike[Decimal(plain_text) if _NAME_NUMBER.fullmatch(plain_text) else plain_text].add(value)
    return sorted(sorted(group) for group in alike.values() if len(group) > 1)


def numbered(names: Array) -> tuple[Indices, tuple[str, ...]]:
    """Number names, and list them in order: that of numbers if all are numbers, else that of texts."""
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

    distinct = sorted(set(names.tolist()))
    if all(map(_NAME_NUMBER.fullmatch, distinct)):
        distinct.sort(key=Decimal)
    return pd.Index(distinct).get_indexer(names).astype(np.int64), tuple(distinct)


def without_gaps(values: Array) -> Array:
    """Values `[rows]` from `plain` in which what means in a feature that a value is missing is None, too."""
    values = values.copy()
    values[np.array([isinstance(v, str) and v.lower() in _FEATURE_MISSING for v in values], bool)] = None
    return values


def infinite(values: Floats) -> npt.NDArray[np.bool_]:
    """Find numbers that are infinite or too large for a sample; those that are missing are not among them."""
    return np.abs(values) > np.finfo(np.float32).max


def far_values(values: Floats) -> Floats:
    """Find values, three at most, that are over a thousand standard deviations of all others from these' mean.

    They often stand for a missing number. In the mean and the deviation of the column they leave nothing of the others.
    """
    held = values[~np.isnan(values)]
    distinct = np.unique(held)
    farthest = distinct[np.argsort(-np.abs(distinct - np.median(distinct)), kind="stable")][:3]
    for count in range(len(farthest), 0, -1):
        far = farthest[:count]
        others = held[~np.isin(held, far)]
        if len(others) and 0 < _FAR * others.std() < np.abs(far - others.mean()).min():
            return far
    return farthest[:0]


def read_feature(values: Array, *, category: bool) -> tuple[ColumnKind, Array] | str:
    """ColumnKind and values of a column of features, or what is wrong with it and the remedy, for a message.

    Args:
        values: `[rows]` from `plain`.
        category: whether the user says that it holds categories, which may look like numbers.
    """
    values = without_gaps(values)
    held = present(values)
    if not len(held):
        return "has no value in any row; add it to `leave_out`"
    dates: list[Any] = [
        v for v in held if isinstance(v, datetime.date | datetime.time | datetime.timedelta | np.datetime64)
    ]
    dates += [v for v in held if isinstance(v, str) and _DATE.fullmatch(v)]
    if 2 * len(dates) > len(held):
        return (
            f"holds dates, such as {str(dates[0])!r}; make numbers of them, such as days since a date, or add it to "
            "`leave_out`"
        )
    if strange := [v for v in held if not isinstance(v, str | int | float)]:
        kind = type(strange[0]).__name__
        return f"holds values of the type {kind}; it should hold numbers or texts, or add it to `leave_out`"
    if not category:
        if (floats := numbers(values)) is not None:
            return _number(floats)
        strangers = [str(v) for v in held if isinstance(v, str) and not _NUMBER.fullmatch(v)]
        if 2 * sum(not COMMA_NUMBER.fullmatch(text) for text in strangers) <= len(held):
            return (
                f"holds numbers and {strangers[0]!r}; write numbers with a decimal point, or nothing, or add it to "
                "`categories`"
            )
    return _category(texts(values))


def read_text(values: Iterable[Any]) -> tuple[ColumnKind, Array] | str:
    """Read a column of texts as `read_feature` does: each as it is written, even `NA`; None where there is nothing."""
    written = np.array([v if isinstance(v, str) else gap for v, gap in zip(values, plain(values), strict=True)], object)
    if strange := [v for v in present(written) if not isinstance(v, str)]:
        return f"holds values of the type {type(strange[0]).__name__}, such as {strange[0]!s:.40}; it should hold texts"
    written[np.array([v is None or not v.strip() for v in written], bool)] = None
    if not len(present(written)):
        return "has no text in any row"
    return "category", written


def _number(values: Floats) -> tuple[ColumnKind, Array] | str:
    held = values[~np.isnan(values)]
    if infinite(held).any():
        return "holds infinite or huge numbers; leave their cells empty, or add it to `leave_out`"
    distinct = len(np.unique(held)) == len(held) > _FEW
    if distinct and (held == np.rint(held)).all() and held.max() - held.min() < 2 * len(held):
        return "numbers the rows, another number for each; it identifies them: add it to `leave_out`"
    return "number", values


def _category(values: Array) -> tuple[ColumnKind, Array] | str:
    held = present(values)
    distinct = sorted(set(held))
    if len(distinct) > MOST_CATEGORIES or (len(distinct) > 10 and 2 * len(distinct) > len(held)):
        return (
            f"holds {len(distinct)} different texts in {len(held)} rows, such as {distinct[0][:40]!r}: free text or an "
            "identifier; add it to `leave_out`, make at most 100 categories of it, or read it by the data set `texts`"
        )
    if alike := spellings(distinct):
        return f"spells a category in {len(alike[0])} ways, {' and '.join(map(repr, alike[0]))}; write it in one"
    return "category", values


def described(columns: Columns, training: Indices) -> list[dict[str, Any]]:
    """Name and kind of each column, with its `categories` (None: missing), or whether it has `gaps`, as the rows
    `training` have them, in values that JSON can hold."""
    listed: list[dict[str, Any]] = []
    for column, (kind, values) in columns.items():
        known = values[training]
        if kind == "number":
            listed.append({"name": column, "kind": kind, "gaps": bool(np.isnan(known).any())})
        else:
            categories = sorted(set(known), key=lambda text: (text is None, text or ""))
            listed.append({"name": column, "kind": kind, "categories": categories})
    return listed


def channels(table: Iterable[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Name of each channel that `encode` makes of columns, and whether it holds 0 and 1 alone.

    Numbers are as they are, and categories have a channel each. A column of numbers that lacks some in the training
    part gets a further channel, 1 where it does; that a category is missing is a category.

    Args:
        table: the columns, from `described`.
    """
    listed = []
    for column in table:
        name = column["name"]
        if column["kind"] == "number":
            listed += [(name, False), *([(f"{name} missing", True)] if column.get("gaps") else [])]
        else:
            listed += [(f"{name} missing" if v is None else f"{name}={v}", True) for v in column["categories"]]
    return listed


def encode(table: Iterable[Mapping[str, Any]], columns: Columns) -> Floats:
    """Samples `[rows, channels]`, float64, NaN where a number is missing. A category that the training part lacks is 0
    in all channels of its column."""
    blocks = []
    for column in table:
        values = columns[column["name"]][1][:, None]
        if column["kind"] == "number":
            blocks += [values, *([np.isnan(values)] if column.get("gaps") else [])]
        else:
            blocks.append(values == np.array(column["categories"], object))
    return np.concatenate(blocks, axis=1).astype(np.float64)
