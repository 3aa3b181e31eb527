"""What compressed uploads cost three methods on digits (docs/lab-notes.md has the table).

python docs/examples/compressed_uploads.py [--seeds 3] [--rounds 30] [--out runs/compressed] [--picture FILE.png]:
trains each method under each channel and prints test accuracies of the models that a method trains, and the bytes that
FedAvg's clients send, in percent; the picture has the accuracies against the bytes. Another call goes on.
"""

import argparse
from pathlib import Path

import pandas as pd

import bench
from reports.pictures.canvas import COLOURS, MARKERS, drawing, finish, legend
from reports.reading.names import setting_text

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
    parser.add_argument("--picture", type=Path)
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
    sizes = (100 * of_fedavg / of_fedavg["no channel"]).to_dict()
    print("| channel | bytes, % |", " | ".join(columns), "|")
    print("|---|---:|", "---:|" * len(columns), sep="")
    for channel, of_channel in table.groupby("channel", sort=False):
        values = [of_channel[of_channel["figure"] == column]["accuracy"] for column in columns]
        entries = " | ".join(f"{v.mean():.1f} ± {v.std():.1f}" for v in values)
        print(f"| {channel} | {sizes[str(channel)]:.1f} | {entries} |")
    if options.picture:
        draw(table, sizes, columns, options.picture)


def draw(table: pd.DataFrame, sizes: dict[str, float], columns: list[str], file: Path) -> None:
    """Accuracy against bytes, a panel for each model and a point with its standard deviation for each channel."""
    with drawing(tuple(columns), 1, panel=(2.6, 2.4)) as (canvas, axes):
        points = {
            channel: {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k], "ls": ""}
            for k, channel in enumerate(sizes)
        }
        for axis, column in zip(axes, columns, strict=True):
            for channel, size in sizes.items():
                values = table[(table["channel"] == channel) & (table["figure"] == column)]["accuracy"]
                axis.errorbar(size, values.mean(), yerr=values.std(), elinewidth=0.8, **points[channel])
            axis.set(title=column, xlabel="bytes of uploads (%)", ylabel="test accuracy (%)", xscale="log")
        legend(canvas, points)
        file.write_bytes(finish(canvas, file.stem, "", "").png)


if __name__ == "__main__":
    main()
