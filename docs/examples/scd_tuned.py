"""SCD tuned, against the others with the same budget: the paper's claims on the league's tasks (docs/scd-study.md).

    python docs/examples/scd_tuned.py OUT.csv

It reads the shipped entries of the league, in which every method has its best setting of the same number of trials on
each task, and trains nothing. Differences in points of test accuracy, paired by seed, with 95 % t intervals; nothing is
corrected for the number of comparisons.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from scd_study import as_markdown, values

from bench.runs.pack import unpack
from reports.accuracy import GM, PM
from reports.league import by_case
from reports.load import load
from reports.statistics import paired

ENTRIES = Path(__file__).parents[2] / "reports/leagues/league_1_small"
RIVALS = ((GM, "fedavg"), (PM, "ditto"), (PM, "fedrep"), (PM, "finetune"), (PM, "local"))


def compare() -> pd.DataFrame:
    """One row per task and rival: SCD's figure less the rival's, mean and interval over the seeds that both have."""
    names = ["scd", *(rival for _, rival in RIVALS)]
    with TemporaryDirectory() as scratch:
        for name in names:
            unpack(ENTRIES / f"{name}.tar.xz", Path(scratch, name))
        store = by_case(load([Path(scratch, name) for name in names]))
        lines = []
        for task in store.tasks:
            for figure, rival in RIVALS:
                ours, theirs = (values(store, row, task, figure) for row in ("scd", rival))
                if len(ours.keys() & theirs.keys()) > 1:
                    c = paired(ours, theirs)
                    lines.append((task, figure.name, rival, c.n, c.difference, c.low, c.high))
    return pd.DataFrame(lines, columns=["task", "figure", "rival", "seeds", "difference", "low", "high"])


def main(out: Path) -> None:
    """Print the differences as Markdown and write them to a CSV file."""
    table = compare().round(2)
    table.to_csv(out, index=False)
    table["text"] = [f"{d:+.2f} [{a:+.2f}, {b:+.2f}]" for d, a, b in table[["difference", "low", "high"]].to_numpy()]
    table["against"] = table["figure"] + " − " + table["rival"]
    wide = table.pivot_table(index="task", columns="against", values="text", aggfunc="first", sort=False)
    print(as_markdown(wide))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/examples/scd_tuned.py OUT.csv")
    main(Path(sys.argv[1]))
