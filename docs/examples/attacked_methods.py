"""Does personalisation protect? Twelve methods under four attacks and four servers (docs/lab-notes.md has the table).

python docs/examples/attacked_methods.py [--seeds 3] [--rounds 10] [--jobs 1] [--out runs/attacked]: trains each method
under each attack with each server on digits and prints benign clients' accuracies after the last round: of the generic
model and of the personalized ones, each where the method trains it. Another call goes on.
"""

import argparse
import math

import pandas as pd

import bench
from bench.results.results import RunView
from reports.reading.names import setting_text
from reports.statistics import inference

METHODS = [
    "fedavg", "fedprox", "finetune", "perfedavg", "ditto", "mrmtl", "apfl", "scd", "fedper", "fedrep", "fedbabu",
    "lgfedavg",
]  # fmt: skip
SHARE = 0.3
ATTACKS = [
    {"name": "honest", "share": SHARE},
    {"name": "label_flip", "share": SHARE},
    {"name": "noise", "share": SHARE, "std": 1.0},
    {"name": "sign_flip", "share": SHARE, "factor": 4.0},
    {"name": "min_max", "share": SHARE},
]
SERVERS = [
    None,
    {"name": "median"},
    {"name": "trimmed_mean", "share": SHARE},
    {"name": "multi_krum", "share": SHARE},
]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", default="runs/attacked")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    grid = {
        "name": "attacked methods", "methods": options.methods, "alphas": [0.5], "clients": 20, "model": "mlp",
        "lr": 0.1, "seeds": list(range(options.seeds)), "rounds": options.rounds, "eval_every": options.rounds,
        "vary": {"attack": ATTACKS, "server": SERVERS},
    }  # fmt: skip
    run = bench.run(grid, out=options.out, jobs=options.jobs, tracking=False)
    print(markdown(benign(run)))


def benign(run: RunView) -> pd.DataFrame:
    """Accuracies in percent of benign clients after the last round, a row for each cell and model that it trains."""
    settings = {cell.id: cell.settings for cell in run.cells}
    figures = run.results
    figures = figures[(figures["selection"] == "last") & (figures["mean"] == "benign") & ~figures["derived"]]
    figures = figures[figures["metric"].isin(["gm", "pm"])]
    return pd.DataFrame(
        {
            "attack": [setting_text("attack", settings[cell].attack) for cell in figures["cell"]],
            "server": [(settings[cell].server or {"name": "mean"})["name"] for cell in figures["cell"]],
            "model": figures["metric"].str.upper(),
            "method": figures["method"],
            "value": 100 * figures["value"],
        }
    )


def markdown(table: pd.DataFrame) -> str:
    """Attack, server and model by method: the mean, and how far its 95 % interval reaches, over seeds."""
    methods = [method for method in METHODS if (table["method"] == method).any()]
    lines = [f"| attack | server | model | {' | '.join(methods)} |", f"|---|---|---|{'---:|' * len(methods)}"]
    for place, rows in table.groupby(["attack", "server", "model"], sort=False):
        entries = [entry(list(rows[rows["method"] == method]["value"])) for method in methods]
        lines.append(f"| {' | '.join(map(str, place))} | {' | '.join(entries)} |")
    return "\n".join(lines)


def entry(values: list[float]) -> str:
    """One entry of the table."""
    if not values:
        return "–"
    summary = inference.summarise(values)
    half = (summary.high - summary.low) / 2
    return f"{summary.mean:.1f}" if math.isnan(half) else f"{summary.mean:.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
