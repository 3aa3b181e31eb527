"""pFLeague from a script or a notebook (docs/python.md): run a grid, look at its results, drive one cell by hand."""

from pathlib import Path

import torch

import bench

GRID = """
methods: [fedavg, {name: ditto, lam: 1.0}]
datasets: [digits]
alphas: [0.1]
seeds: [0, 1]
clients: 10
rounds: 3
model: mlp
"""


def main(folder: Path) -> None:
    """Print what the docs show."""
    (folder / "mine.yaml").write_text(GRID, encoding="utf-8")
    run = bench.run(folder / "mine.yaml", out=folder / "run", keep="best", quiet=True)
    figures = run.results  # pandas: one row per cell and figure
    chosen = figures[(figures["metric"] == "pm") & (figures["mean"] == "equal") & (figures["selection"] == "last")]
    print(chosen.groupby("label")["value"].mean().round(3).to_string())
    print(sorted(run.metrics.columns))  # curves; run.clients has the scores of every client

    cell = run.cells[0]
    model, digits = cell.model(client=3), bench.load_dataset(cell.settings)  # of the reported round
    print(model(torch.from_numpy(digits.x[:5])).argmax(1).tolist(), "predicted,", digits.y[:5].tolist(), "true")

    settings = bench.Settings(method="fedavg", alpha=0.1, clients=10, rounds=3)
    partition = bench.load_partition(settings, bench.load_dataset(settings))
    print(partition.summary)  # partition.train, .validation, .test: index arrays by client

    federation = bench.Federation.of(settings)  # data, partition, shifts and public samples included
    for _ in range(settings.rounds):
        federation.advance()
    print(len(federation.evaluate().clients), "scores of clients")
    print(all(finding.passed for finding in bench.check_method("fedavg")))


if __name__ == "__main__":
    main(Path("."))
