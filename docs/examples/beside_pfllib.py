"""Six methods by PFLlib's own code and by this harness, on the same samples from the same initial values.

    cd docs/examples
    python beside_pfllib.py prepare FOLDER             # samples, splits and initial values, for PFLlib
    python beside_pfllib.py theirs FOLDER PFLLIB OUT   # PFLLIB: its checkout; needs h5py and calmsize
    bench run --grid beside_pfllib.yaml --out RUN
    python beside_pfllib.py compare RUN OUT PICTURE    # table and picture of docs/lab-notes.md

PFLlib's `main.py` runs unchanged with the arguments in `COMMON` and `METHODS`, once for each method and seed. Three
things come from outside: its network, which is our `mlp` with our initial values; its random state (Python and NumPy
begin at the seed; its clients set torch's to 0); and a stand-in for an import that none of the six methods needs.
"""

import argparse
import importlib
import multiprocessing
import os
import random
import runpy
import sys
import time
import types
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

SEEDS = (0, 1, 2, 3, 4)
ROUNDS, GAP, CLIENTS, BATCH = 20, 4, 10, 10
COMMON = f"-dev cpu -m DNN -ncl 10 -lbs {BATCH} -ls 1 -lr 0.05 -nc {CLIENTS} -gr {ROUNDS} -eg {GAP}"
METHODS = {
    "fedavg": "-algo FedAvg",
    "fedper": "-algo FedPer",
    "ditto": "-algo Ditto -mu 1.0",
    "fedala": "-algo FedALA -et 1.0 -s 80 -p 2",
    "feddbe": "-algo FedDBE -klw 1.0 -mo 1.0",
    "fedproto": "-algo FedProto -lam 1.0",
}


def prepare(folder: Path, seeds: tuple[int, ...]) -> None:
    """Write PFLlib's data folder of each seed, with the samples and the split of our cell, and our initial values."""
    import bench
    from bench.models.factory import build, initial_values

    for seed in seeds:
        cell = bench.load_grid(str(GRID), [f"seeds=[{seed}]"]).cells[0]
        data = bench.load_dataset(cell)
        partition = bench.load_partition(cell, data)
        x = (np.asarray(data.x, np.float32) / 255 - data.mean[0]) / data.std[0]
        for part, lists in (("train", partition.train), ("test", partition.test)):
            place = folder / f"digits-{seed}" / part
            place.mkdir(parents=True, exist_ok=True)
            for client, indices in enumerate(lists):
                np.savez_compressed(place / f"{client}.npz", data={"x": x[indices], "y": data.y[indices]})
        at, options = ("initial", seed, cell.model, 0), cell.model_options
        net = build(cell.model, data.shape, data.num_classes, options)
        drawn = initial_values(net, cell.model, data.shape, data.num_classes, options, at)
        values = {name.removeprefix("body.").replace("head", "fc"): value for name, value in drawn.items()}
        torch.save(values, folder / f"initial-{seed}.pt")
        print(seed, partition.summary)


def theirs(folder: Path, checkout: Path, out: Path, methods: list[str], seeds: tuple[int, ...]) -> None:
    """Run PFLlib's code for each method and seed, each in a process of its own, and write its curves as one table."""
    os.chdir(checkout / "system")
    for seed in seeds:
        link = checkout / "dataset" / f"digits-{seed}"
        if not link.exists():
            link.symlink_to(folder / link.name)
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    sys.modules.setdefault("cvxpy", types.ModuleType("cvxpy"))  # FedPAC's
    importlib.import_module("main")  # whose imports the processes below share
    rows: list[pd.DataFrame] = [pd.read_csv(out, comment="#")] if out.exists() else []
    for method in methods:
        for seed in seeds:
            if any(((table["method"] == method) & (table["seed"] == seed)).any() for table in rows):
                continue
            start = time.perf_counter()
            process = multiprocessing.get_context("fork").Process(target=_main, args=(folder, method, seed))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"PFLlib's {method} with seed {seed} ended with {process.exitcode}")
            rows.append(_curve(method, seed))
            pd.concat(rows).to_csv(out, index=False)
            print(f"{method} {seed}: {time.perf_counter() - start:.0f} s, best {rows[-1]['accuracy'].max():.2f}")


def _main(folder: Path, method: str, seed: int) -> None:
    """Run PFLlib's `main.py` in this process."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the rest of the process)
    from flcore.trainmodel import models

    def network(*sizes: int, **options: int) -> nn.Module:
        layers = {"flatten": nn.Flatten(), "fc1": nn.Linear(64, 200), "relu": nn.ReLU(), "fc": nn.Linear(200, 10)}
        net = nn.Sequential(OrderedDict(layers))
        net.load_state_dict(torch.load(folder / f"initial-{seed}.pt"))
        return net

    models.DNN = network
    random.seed(seed)
    np.random.seed(seed)
    sys.argv = ["main.py", *COMMON.split(), *METHODS[method].split(), "-data", f"digits-{seed}", "-go", method]
    runpy.run_path("main.py", run_name="__main__")


def _curve(method: str, seed: int) -> pd.DataFrame:
    """The accuracies that PFLlib kept, by round; of Ditto, which keeps two in turn, the personalized models'."""
    import h5py

    algorithm = METHODS[method].split()[1]
    with h5py.File(f"../results/digits-{seed}_{algorithm}_{method}_0.h5") as file:
        kept = 100 * np.array(file["rs_test_acc"])
    kept = kept[1::2] if method == "ditto" else kept
    rounds = GAP * np.arange(len(kept))
    return pd.DataFrame({"method": method, "seed": seed, "round": rounds, "accuracy": kept.round(4)})


def compare(run: Path, table: Path, picture: Path) -> None:
    """Print both sides' best accuracies over rounds with the paired difference by seed, and draw all curves."""
    import matplotlib.pyplot as plt

    import bench

    theirs = pd.read_csv(table, comment="#")
    rows = []
    for cell in bench.load_run(run).cells:
        scores = cell.table("metrics")
        kept = (scores["metric"] == "pm") & (scores["on"] == "local") & (scores["mean"] == "train_size")
        curve = scores[kept & (scores["split"] == "test") & (scores["quantity"] == "accuracy")]
        named = {"method": cell.settings.method, "seed": cell.settings.seed}
        rows.append(pd.DataFrame({**named, "round": curve["round"], "accuracy": 100 * curve["value"]}))
    ours = pd.concat(rows)
    ours = ours[ours["round"] % GAP == 0]
    print("| method | PFLlib | ours | difference | 95 % interval | last round |\n|---|---|---|---|---|---|")
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True)
    for method, axis in zip(METHODS, axes.flat, strict=True):
        sides = [side[(side["method"] == method) & (side["round"] > 0)] for side in (theirs, ours)]
        best = [side.groupby("seed")["accuracy"].max() for side in sides]
        last = [side[side["round"] == ROUNDS].set_index("seed")["accuracy"] for side in sides]
        gap, end = best[1] - best[0], last[1] - last[0]
        half = float(stats.t.ppf(0.975, len(gap) - 1) * gap.std() / len(gap) ** 0.5)
        means = " | ".join(f"{score.mean():.2f} ± {score.std():.2f}" for score in best)
        interval = f"({gap.mean() - half:+.2f}, {gap.mean() + half:+.2f})"
        print(f"| `{method}` | {means} | {gap.mean():+.2f} | {interval} | {end.mean():+.2f} |")
        for side, color, name in zip(sides, ("tab:orange", "tab:blue"), ("PFLlib", "here"), strict=True):
            for _, curve in side.groupby("seed"):
                axis.plot(curve["round"], curve["accuracy"], color=color, alpha=0.3, linewidth=0.8)
            axis.plot(side.groupby("round")["accuracy"].mean(), color=color, marker="o", markersize=3, label=name)
        axis.set_title(method)
        axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.supxlabel("round")
    figure.supylabel("accuracy on the clients' tests, %")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


GRID = Path(__file__).resolve().with_suffix(".yaml")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["prepare", "theirs", "compare"])
    parser.add_argument("paths", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(*options.paths, tuple(options.seeds))
    elif options.command == "theirs":
        theirs(*options.paths, options.methods, tuple(options.seeds))
    else:
        compare(*options.paths)


if __name__ == "__main__":
    main()
