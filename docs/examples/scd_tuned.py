"""SCD tuned, against the others with the same budget (docs/scd-study.md).

    python docs/examples/scd_tuned.py OUT.csv           on the league's tasks, from its shipped entries
    python docs/examples/scd_tuned.py OUT.csv RUN       in a run of the sweep scd_search.yaml

Nothing is trained. Differences in points of test accuracy, paired by seed or, in the league, by draw of tuning, with
95 % t intervals; nothing is corrected for the number of comparisons.
"""

import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from scd_study import as_markdown

from bench.results.pack import unpack
from reports.league.page import by_case
from reports.reading.load import GM, PM, Store, load
from reports.statistics.inference import paired

ENTRIES = Path(__file__).parents[2] / "reports/league/entries/league_2_small"
RIVALS = ((GM, "fedavg"), (PM, "ditto"), (PM, "fedrep"), (PM, "finetune"), (PM, "local"))


def league(folder: Path) -> Store:
    """Unpack into a folder, and read, the entries of SCD and its rivals.

    Their settings are the best of the same number of trials on each task.
    """
    names = ["scd", *(rival for _, rival in RIVALS)]
    for name in names:
        unpack(ENTRIES / f"{name}.tar.xz", folder / name)
    return by_case(load([folder / name for name in names]))


def compare(store: Store) -> pd.DataFrame:
    """Each row of SCD less each rival, by task: mean and interval over the units that both have."""
    lines = []
    for row in store.rows:
        if not row.startswith("scd"):
            continue
        for task, (figure, rival) in product(store.tasks, RIVALS):
            ours, theirs = (store.scores(name, task, figure) for name in (row, rival))
            if len(ours.keys() & theirs.keys()) > 1:
                c = paired(ours, theirs, least=store.least(task, figure.on))
                lines.append((row, task, figure.name, rival, c.n, c.difference, c.low, c.high))
    return pd.DataFrame(lines, columns=["row", "task", "figure", "rival", "units", "difference", "low", "high"])


def markdown(table: pd.DataFrame) -> str:
    """The differences as a Markdown table with a column for each rival."""
    text = [f"{d:+.2f} [{a:+.2f}, {b:+.2f}]" for d, a, b in table[["difference", "low", "high"]].to_numpy()]
    named = table.assign(text=text, against=table["figure"] + " − " + table["rival"])
    return as_markdown(
        named.pivot_table(index=["row", "task"], columns="against", values="text", aggfunc="first", sort=False)
    )


def main(out: Path, run: Path | None = None) -> None:
    """Print the differences as Markdown and write them to a CSV file."""
    with TemporaryDirectory() as scratch:
        table = compare(load([run]) if run else league(Path(scratch))).round(2)
    table.to_csv(out, index=False)
    print(markdown(table))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python docs/examples/scd_tuned.py OUT.csv [RUN]")
    main(*map(Path, sys.argv[1:]))
