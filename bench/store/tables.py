"""The tables of a cell as data frames."""

import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.store import inside
from bench.store.store import COLUMNS, EVALUATED

if TYPE_CHECKING:
    import pandas as pd

_TABLES = {**COLUMNS, "evaluated": EVALUATED}

_TEXTS = ("metric", "on", "mean", "split", "quantity", "bits", "kind")
"""Columns of words; all others hold numbers."""


def read_table(folder: Path, name: str) -> "pd.DataFrame":
    """Read a table of a cell, without a line that is still being written; empty where there is none."""
    return read_tables([folder], name)[0]


def read_tables(folders: Iterable[Path], name: str) -> "tuple[pd.DataFrame, list[int]]":
    """Read the tables of several cells, one below another, and the number of rows of each.

    Many small tables are read at once, because each call of pandas takes about as long as a thousand rows.
    """
    import pandas as pd

    files = [folder / f"{name}.csv" for folder in folders]
    texts = [_whole_lines(file) for file in files]
    try:
        frames = [
            _parsed("".join([f"{head}\n", *(rows for _, _, rows in same)]), name)
            for head, same in itertools.groupby((text.partition("\n") for text in texts if text), lambda part: part[0])
        ]
    except ValueError as error:
        file = next((file for file, text in zip(files, texts, strict=True) if not _is_sound(text, name)), files[0])
        raise UserError(
            f"{file} is damaged: no table of {', '.join(_TABLES[name])} ({' '.join(str(error).split())})"
        ) from None
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


def _is_sound(text: str, name: str) -> bool:
    try:
        return not text or _parsed(text, name) is not None
    except ValueError:
        return False
