"""The tables of a cell as data frames."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from bench.runs.store import COLUMNS


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """A table of a cell, without a line that is still being written; empty where there is none."""
    path = folder / f"{name}.csv"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if not whole:
        return pd.DataFrame(columns=list(COLUMNS[name]))
    exact: dict[str, Callable[[str], Any]] = {
        column: float for column in ("value", "seconds", "settled", "start", "end") if column in COLUMNS[name]
    }
    if "bits" in COLUMNS[name]:  # which may look like a number
        exact["bits"] = str
    # "" is a name here (the mean of a pooled figure), not a missing value; `float` reads back exactly what was written
    return pd.read_csv(io.StringIO(whole), keep_default_na=False, converters=exact)
