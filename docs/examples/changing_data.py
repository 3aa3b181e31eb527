"""A drift after round 20 on digits: who recovers, who splits, who forgets, and who loses by others' drift.

python docs/examples/changing_data.py [--seeds 3] [--rounds 80] [--out runs/changing] [--picture FILE.png]: trains on
clients whose labels get two meanings, and on clients of whose images half are turned; makes the report, and prints its
table, by which clients a model is shared in the end, and what the clients lost whose data did not change. Another call
goes on.
"""

import argparse
import shutil

import numpy as np
import pandas as pd

import bench
from bench.federation.cell_data import load_all
from bench.results.results import CellView
from reports.page.changes import change_table, changes
from reports.reading.load import load
from reports.tables.table import to_markdown

METHODS = ["fedavg", "local", {"name": "ifca", "k": 2}, "feddrift", "flash", "er"]
SPLITTING = ("ifca", "feddrift")
CHANGE = 20  # the last round with the data as they were
DRIFTS = {
    "labels": [{"name": "concept_shift", "clusters": 2}],
    "turned": [{"name": "rotation", "groups": 2}],
}


def main() -> None:
    """Run, report and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--out", default="runs/changing")
    parser.add_argument("--picture")
    options = parser.parse_args()
    grid = {
        "name": "changing data", "methods": METHODS, "datasets": ["digits"], "seeds": list(range(options.seeds)),
        "partition": "iid", "clients": 10, "rounds": options.rounds, "eval_every": 2, "model": "mlp",
        "model_options": {"hidden": 32}, "lr": 0.1,
        "cases": [
            {"name": name, "timeline": [{"round": CHANGE, "shifts": shifts}]} for name, shifts in DRIFTS.items()
        ],
    }  # fmt: skip
    run = bench.run(grid, out=options.out, tracking=False, keep="best")
    page = bench.report(run.path)
    store = load([run])
    print(to_markdown(change_table(store, changes(store))))
    for cell in run.cells:
        if cell.settings.method in SPLITTING:
            print(
                f"{cell.label}, {cell.settings.case}, seed {cell.settings.seed}: {shared(cell)}; drifted: {moved(cell)}"
            )
    lost = pd.DataFrame([(cell.settings.case, cell.label, loss_of_the_others(cell)) for cell in run.cells])
    print(lost.groupby([0, 1], sort=False)[2].agg(["mean", "std", "count"]).round(2).to_string())
    if options.picture:
        shutil.copyfile(page.parent / "figures" / "changes.png", options.picture)


def shared(cell: CellView) -> str:
    """The clients of each model of the reported round."""
    groups: dict[bytes, list[int]] = {}
    for client in range(cell.settings.clients):
        weights = [parameter.detach().numpy().tobytes() for parameter in cell.model(client).parameters()]
        groups.setdefault(b"".join(weights), []).append(client)
    return " | ".join(" ".join(map(str, group)) for group in groups.values())


def loss_of_the_others(cell: CellView) -> float:
    """Points that clients whose data did not change lost from the change to the last round, personalized models."""
    drifted = moved(cell)
    tests = cell.table("clients").query("split == 'test' and metric == 'pm'")
    tests = tests[~tests["client"].isin(drifted)]
    correct, samples = (tests.groupby("round")[column].sum() for column in ("correct", "samples"))
    accuracy = 100 * correct / samples
    return float(accuracy[CHANGE] - accuracy[cell.settings.rounds])


def moved(cell: CellView) -> list[int]:
    """The clients whose training samples are others after the change."""
    dataset, partition, _ = load_all(cell.settings)
    before, after = partition.stages
    return [
        client
        for client, (old, new) in enumerate(zip(before.train, after.train, strict=True))
        if not (np.array_equal(dataset.y[old], dataset.y[new]) and np.array_equal(dataset.x[old], dataset.x[new]))
    ]


if __name__ == "__main__":
    main()
