"""The table of docs/lab-notes.md: python table.py RUN prints what `bench results RUN --csv` has, a column a shift."""

import sys
from pathlib import Path

from bench.results.results import tidy


def main(run: Path) -> None:
    """Print a Markdown table: accuracy of the models that clients use, mean and half the range over seeds."""
    figures = tidy(run)
    chosen = figures[
        (figures["selection"] == "validation") & (figures["metric"] == "pm") & (figures["mean"] == "train_size")
    ]
    grouped = 100 * chosen.groupby(["label", "case"], sort=False)["value"].agg(["mean", "min", "max"])
    text = grouped.apply(lambda row: f"{row['mean']:.1f} ± {(row['max'] - row['min']) / 2:.1f}", axis=1).unstack()
    text = text[chosen["case"].unique()]
    print("| method |", " | ".join(text.columns), "|")
    print("|---" * (len(text.columns) + 1) + "|")
    for label, row in text.loc[chosen["label"].unique()].iterrows():
        print(f"| {label} |", " | ".join(row), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
