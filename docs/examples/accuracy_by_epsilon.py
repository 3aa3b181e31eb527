"""What privacy of clients costs six methods: accuracy against epsilon, on digits, with noise on the sum of uploads.

    python docs/examples/accuracy_by_epsilon.py --out runs/epsilon --picture docs/accuracy-by-epsilon.svg

One client's data are in the released model values as much as epsilon says, whatever the client sends. `local` sends
nothing. The norm and the learning rate are the same everywhere; none was tuned for a noise.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import pandas as pd

import bench
from bench.results.privacy import epsilon_text
from bench.results.results import RunView
from reports.pictures.canvas import COLOURS, drawing, finish

METHODS = ["fedavg", "fedala", "ditto", "apfl", "fedper", "fedrep"]
NOISES = [2.0, 4.0, 8.0, 16.0]
CHANNELS = [[], *([{"name": "clip", "norm": 1.0}, {"name": "gaussian", "noise": noise}] for noise in NOISES)]
COMMON: dict[str, Any] = {
    "alphas": [0.3], "clients": 100, "model": "mlp", "model_options": {"hidden": 16}, "lr": 0.1, "epochs": 3,
    "rounds": 15, "eval_every": 5,
}  # fmt: skip
PLAIN = "no noise"


def main() -> None:
    """Run, print the table, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs/epsilon")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    grid = {"name": "accuracy by epsilon", "seeds": list(range(options.seeds)), **COMMON}
    noisy = bench.run({**grid, "methods": METHODS, "vary": {"channel": CHANNELS}}, out=options.out, tracking=False)
    alone = bench.run({**grid, "methods": ["local"]}, out=f"{options.out}-local", tracking=False)
    table = pd.concat([_accuracies(noisy), _accuracies(alone)])
    kinds = sorted(table["epsilon"].unique(), key=lambda text: (text == PLAIN, float(text) if text != PLAIN else 0))
    columns = list(dict.fromkeys(table["figure"]))
    print("| ε |", " | ".join(columns), "|")
    print("|---|", "---:|" * len(columns), sep="")
    for epsilon in kinds:
        values = [table[(table["epsilon"] == epsilon) & (table["figure"] == column)]["accuracy"] for column in columns]
        print(f"| {epsilon} |", " | ".join(_text(v) for v in values), "|")
    if options.picture is not None:
        _draw(table, [column for column in columns if not column.startswith("local")], options.picture)


def _text(values: "pd.Series[float]") -> str:
    """Mean and, of several seeds, standard deviation; a dash for none."""
    spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
    return f"{values.mean():.1f}{spread}" if len(values) else "–"


def _accuracies(run: RunView) -> pd.DataFrame:
    """Test accuracy in percent of what a method is for: FedAvg's generic model, else personalized ones."""
    figures = run.results
    figures = figures[(figures["selection"] == "validation") & (figures["mean"] != "equal") & ~figures["derived"]]
    generic = figures["method"] == "fedavg"
    figures = figures[(generic & (figures["on"] == "global")) | (~generic & (figures["metric"] == "pm"))]
    channel = {cell.id: cell.settings.channel for cell in run.cells}
    return pd.DataFrame(
        {
            "figure": figures["method"] + " " + figures["metric"].str.upper(),
            "epsilon": [
                epsilon_text([figure.epsilon_client]) if channel[figure.cell] else PLAIN
                for figure in figures.itertuples()
            ],
            "accuracy": 100 * figures["value"],
        }
    )


def _draw(table: pd.DataFrame, columns: list[str], file: Path) -> None:
    means = table.groupby(["figure", "epsilon"])["accuracy"].mean()
    alone = table[table["figure"].str.startswith("local")]["accuracy"].mean()
    with drawing([""], 1, (6.0, 4.0)) as (canvas, (axis,)):
        for colour, column in zip(COLOURS, columns, strict=False):
            line = sorted(
                (float(e), value) for e, value in means[column].items() if e != PLAIN and math.isfinite(float(e))
            )
            axis.plot(*zip(*line, strict=True), marker="o", color=colour, label=column)
        axis.axhline(alone, color="black", linestyle=":", label="local PM, sends nothing")
        axis.set(xscale="log", xlabel="ε of a client (δ = 1e-5)", ylabel="test accuracy (%)")
        axis.legend(fontsize=8)
        picture = finish(canvas, "accuracy_by_epsilon", "", "")
    file.write_bytes(picture.svg)


if __name__ == "__main__":
    main()
