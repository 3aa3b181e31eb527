"""The picture of Tables 6 to 8 in docs/scd-study.md: accuracy against tau and both lambdas under each reading.

    python docs/examples/scd_curves.py OUT.png FOLDER...

A folder has the `curves.csv` that docs/examples/scd_study.py wrote there.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scd_study import PUBLISHED

from reports.pictures.canvas import drawing, finish, legend, style_of

_NUMBER = r"{}=([\d.e+-]+)"


def read(folder: Path) -> pd.DataFrame:
    """The folder's curves, with a column for the reading and for each varied setting."""
    table = pd.read_csv(folder / "curves.csv")
    for name in PUBLISHED:
        table[name] = table["row"].str.extract(_NUMBER.format(re.escape(name)), expand=False).astype(float)
    table["reading"] = table["row"].str.split(", ").str[0]
    return table


def curve(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows that have the published values of all settings but this one, in its order."""
    rest = [(table[other] == value) for other, value in PUBLISHED.items() if other != name]
    return table[rest[0] & rest[1]].sort_values(name)


def draw(axis: Axes, table: pd.DataFrame, name: str) -> None:
    """One panel: a line with standard deviations over seeds for each reading; the paper's value is dotted."""
    for k, (_, group) in enumerate(table.groupby("reading", sort=False)):
        line = curve(group, name)
        axis.errorbar(line[name].to_numpy(), line["mean"].to_numpy(), line["std"].to_numpy(), marker=".", **style_of(k))
    axis.axvline(PUBLISHED[name], color="grey", linestyle=":")
    if name != "tau":
        axis.set_xscale("log")


def save(canvas: Figure, file: Path, lines: dict[str, dict[str, Any]]) -> None:
    """Write a drawing as PNG, laid out as on a report's page, with a legend of these lines."""
    legend(canvas, lines)
    file.write_bytes(finish(canvas, file.stem, "", "").png)


def main(out: Path, folders: list[Path]) -> None:
    """A row of three panels for each data set and figure."""
    table = pd.concat(map(read, folders))
    blocks = [(task, figure) for task in table["task"].unique() for figure in ("GM", "PM")]
    with drawing(tuple(PUBLISHED), len(blocks), (3.0, 1.9)) as (canvas, axes):
        panels = [(block, name) for block in blocks for name in PUBLISHED]
        for axis, ((task, figure), name) in zip(axes, panels, strict=True):
            draw(axis, table[(table["task"] == task) & (table["figure"] == figure)], name)
            axis.set(title=task, xlabel=name, ylabel=f"{figure} (%)")
        save(canvas, out, {reading: style_of(k) for k, reading in enumerate(table["reading"].unique())})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python docs/examples/scd_curves.py OUT.png FOLDER...")
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
