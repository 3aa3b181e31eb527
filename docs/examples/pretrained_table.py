"""What of a pretrained network to train on few pictures of new classes, and what to share (docs/lab-notes.md).

    python docs/examples/pretrained_table.py runs/pretrained/vit_tiny --out runs/personal/vit_tiny

runs `pretrained.yaml` on 2,000 pictures of `others.npz` from the weights in that folder, both of which `pretrain.py`
has left there, and prints its table: accuracies in percent with their 95 % t intervals over seeds, bytes that a client
receives and sends in a round, processor seconds of a round on one core, and megabytes of the models of 100 clients at
the peak of a round, a frozen body included. Another call goes on.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import bench
from bench.federation.federation import Federation
from bench.results.results import CellView, RunView
from bench.runs.forecast.estimate import models
from bench.runs.forecast.networks import network_size
from bench.runs.forecast.outline import data_size
from bench.settings import Settings
from bench.store.features import FeatureFiles
from reports.statistics.inference import summarise

GRID = Path(__file__).with_name("pretrained.yaml")
SIZES = {"train": 1200, "test": 800}


def few(folder: Path) -> Path:
    """Write 2,000 of the pictures that `pretrain.py` left out, drawn with equal numbers of each class."""
    file = folder / "others_2000.npz"
    if not file.exists():
        content, rng, arrays = np.load(folder / "others.npz"), np.random.default_rng(0), {}
        for part, size in SIZES.items():
            labels = content[f"{part}_labels"]
            classes = np.unique(labels)
            rows = [rng.choice(np.flatnonzero(labels == c), size // len(classes), replace=False) for c in classes]
            for kind in ("images", "labels"):
                arrays[f"{part}_{kind}"] = content[f"{part}_{kind}"][np.concatenate(rows)]
        np.savez(file, **arrays)
    return file


def seconds(cell: CellView) -> float:
    """Processor time of the second round, on one core and without evaluations."""
    federation = Federation.of(cell.settings, features=FeatureFiles(cell.folder))
    federation.advance()
    start = time.process_time()
    federation.advance()
    return time.process_time() - start


def megabytes(settings: Settings) -> float:
    """Memory of the models of 100 clients at the peak of a round."""
    settings = settings.model_copy(update={"clients": 100})
    size = data_size(settings, Path("data"))
    assert size is not None
    network = network_size(settings, settings.model, size.shape, size.classes)
    return 4 * (models(settings, 100) * network.trained + network.frozen) / 1e6


def table(run: RunView) -> pd.DataFrame:
    """The table, one row for each entry of the grid."""
    figures = run.results
    figures = figures[(figures["selection"] == "validation") & (figures["mean"] != "equal") & ~figures["derived"]]
    figures = figures[(figures["on"] == "global") | (figures["metric"] == "pm")]
    rows = []
    for label in dict.fromkeys(cell.label for cell in run.cells):
        cell = next(cell for cell in run.cells if cell.label == label)
        trained, _, method = label.partition(" ")
        row: dict[str, object] = {"trained": trained, "method": method}
        for metric in ("gm", "pm"):
            values = figures[(figures["label"] == label) & (figures["metric"] == metric)]["value"]
            s = summarise(100 * values.to_numpy(float))
            row[metric.upper()] = f"{s.mean:.1f} ± {s.high - s.mean:.1f}" if s.n else "–"
        ledger = cell.table("ledger").iloc[-1]
        clients = cell.settings.clients
        for way in ("down_receivers", "up"):
            size = (ledger[way] + ledger[f"{way}_buffers"]) / clients
            row[f"{way.partition('_')[0]}, bytes"] = f"{size:,.0f}"
        row["s a round"] = f"{seconds(cell):.2f}"
        row["MB, 100 clients"] = f"{megabytes(cell.settings):,.1f}"
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where `pretrain.py` left its weights and the other classes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the grid")
    given = parser.parse_args()
    os.nice(10)
    torch.set_num_threads(1)
    data = f"datasets=[{{name: npz, path: {few(given.folder)}, label: cifar10-jpeg}}]"
    overrides = [data, f"pretrained={given.folder / 'weights.pt'}", *given.set]
    run = bench.run(GRID, out=given.out, overrides=overrides, tracking=False)
    rows = table(run)
    print("|", " | ".join(rows), "|")
    print("|---|---|", "---:|" * (rows.shape[1] - 2), sep="")
    for row in rows.to_numpy():
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
