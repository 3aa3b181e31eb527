"""How far do methods move when a league's entries are tuned again with other draws of trials?

    python docs/examples/redraw.py OLD NEW               # two folders of entries of the same tasks and seeds

Prints, for personalized and for generic models, points by which means over tasks (by data families) and accuracies on
single tasks differ, over the methods that both folders rank (docs/league.md).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from bench.results.pack import unpack
from reports.league.pictures import means
from reports.league.rule import by_case, family_mean, ranked
from reports.reading.load import load
from reports.tables.accuracy import GM, PM, selection


def by_figure(folder: Path) -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """Of the ranked methods, accuracies by task and their means, for each kind of model."""
    files = sorted(folder.glob("*.tar.xz"))
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            unpack(file, Path(scratch, file.name))
        store = by_case(load([Path(scratch, file.name) for file in files]))
        chosen, found = selection(store), {}
        for figure in (PM, GM):
            table = means(store, list(ranked(store, figure, chosen)[1]), figure, chosen)
            found[figure.name] = table, family_mean(store, table)
    return found


def main() -> None:
    """Print a line for each kind of model."""
    old, new = (by_figure(Path(name)) for name in sys.argv[1:])
    for name, (tasks, mean) in new.items():
        rows = [row for row in mean.index if row in old[name][1].index]
        whole = (mean[rows] - old[name][1][rows]).abs()
        single = (tasks.loc[rows] - old[name][0].loc[rows, tasks.columns]).abs().to_numpy()
        print(
            f"{name}: {len(rows)} methods; means move by {whole.median():.2f} points in the median, 90 % by less than "
            f"{whole.quantile(0.9):.2f}; single tasks by {np.median(single):.2f}, {(single > 1).mean():.0%} of them by "
            "more than 1"
        )


if __name__ == "__main__":
    main()
