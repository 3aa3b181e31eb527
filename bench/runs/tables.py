"""The tables of a cell as data frames."""

import io
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from bench.runs.store import COLUMNS


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """A table of a cell, without a line that is still being written; empty where there is none."""
    return read_tables([folder], name)[0]


def read_tables(folders: Iterable[Path], name: str) -> tuple[pd.DataFrame, list[int]]:
    """The tables of several cells below each other, and how many rows each has. Many small ones are read at once, as
    each call of pandas takes about as long as a thousand rows."""
    texts = [_whole_lines(folder / f"{name}.csv") for folder in folders]
    frames = [
        _parsed("".join([f"{head}\n", *(rows for _, _, rows in same)]), name)
        for head, same in itertools.groupby((text.partition("\n") for text in texts if text), lambda parts: parts[0])
    ]
    whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS[name]))
    return whole, [max(0, text.count("\n") - 1) for text in texts]


def _whole_lines(path: Path) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1]


def _parsed(text: str, name: str) -> pd.DataFrame:
    exact: dict[str, Callable[[str], Any]] = {
        column: float for column in ("value", "seconds", "settled", "start", "end") if column in COLUMNS[name]
    }
    if "bits" in COLUMNS[name]:  # which may look like a number
        exact["bits"] = str
    # "" is a name here (the mean of a pooled figure), not a missing value; `float` reads back exactly what was written
    return pd.read_csv(io.StringIO(text), keep_default_na=False, converters=exact)
