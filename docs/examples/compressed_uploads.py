"""What compressed uploads cost three methods on digits (docs/channel.md has the table).

python docs/examples/compressed_uploads.py [--seeds 3] [--rounds 30] [--out runs/compressed]: trains each method under
each channel and prints test accuracies of the models that a method trains, and the bytes that FedAvg's clients
send, in percent. Another call goes on.
"""

import argparse

import pandas as pd

import bench
from reports.reading.load import setting_text

METHODS = ["fedavg", "ditto", "fedper"]
CHANNELS = [
    [],
    [{"name": "cast", "to": "fp16"}],
    [{"name": "cast", "to": "int8"}],
    [{"name": "quantise", "bits": 4}],
    ["sign"],
    [{"name": "random_k", "share": 0.1}],
    [{"name": "top_k", "share": 0.1}],
    [{"name": "top_k", "share": 0.01}],
    [{"name": "top_k", "share": 0.01}, {"name": "quantise", "bits": 4}],
]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", default="runs/compressed")
    options = parser.parse_args()
    grid = {
        "name": "compressed uploads", "methods": METHODS, "alphas": [0.1], "clients": 20, "model": "mlp", "lr": 0.1,
        "seeds": list(range(options.seeds)), "rounds": options.rounds, "vary": {"channel": CHANNELS},
    }  # fmt: skip
    run = bench.run(grid, out=options.out, tracking=False)
    cells = {cell.id: cell for cell in run.cells}
    figures = run.results
    figures = figures[(figures["selection"] == "validation") & (figures["mean"] != "equal")]
    figures = figures[~figures["derived"] & ((figures["on"] == "global") | (figures["metric"] == "pm"))]
    rows = [
        {
            "channel": setting_text("channel", cells[figure.cell].settings.channel),
            "bytes": cells[figure.cell].table("ledger")["up"].sum(),
            "figure": f"{figure.method} {figure.metric.upper()}",
            "accuracy": 100 * figure.value,
        }
        for figure in figures.itertuples()
    ]
    table = pd.DataFrame(rows)
    columns = list(dict.fromkeys(table["figure"]))
    of_fedavg = table[table["figure"] == "fedavg GM"].groupby("channel", sort=False)["bytes"].mean()
    print("| channel | bytes, % |", " | ".join(columns), "|")
    print("|---|---:|", "---:|" * len(columns), sep="")
    for channel, of_channel in table.groupby("channel", sort=False):
        size = 100 * of_fedavg[channel] / of_fedavg["no channel"]
        values = [of_channel[of_channel["figure"] == column]["accuracy"] for column in columns]
        print(f"| {channel} | {size:.1f} |", " | ".join(f"{v.mean():.1f} ± {v.std():.1f}" for v in values), "|")


if __name__ == "__main__":
    main()
