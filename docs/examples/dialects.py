"""How far does the meaning of "Dir(0.1)" move a ranking? Six methods on the digits under each system's dialect of it.

    python docs/examples/dialects.py [FOLDER]

Prints the mean personalized accuracy over clients and seeds with each method's rank, and Kendall's tau of the rankings
of each two dialects; both are Markdown (docs/lab-notes.md has them). The last table says how far chance alone goes:
tau between the seeds of one dialect. A run that was stopped goes on where it was. Takes some minutes.
"""

import sys
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from scipy.stats import kendalltau

import bench

GRID = """
name: dialects
methods: [fedavg, finetune, local, ditto, fedrep, fedper]
alphas: [0.1]
seeds: [0, 1, 2]
cases:
  - {name: dirichlet, partition: dirichlet}
  - {name: pfllib, partition: dirichlet_pfllib}
  - {name: flbench, partition: dirichlet_flbench}
  - {name: flower, partition: dirichlet_flower}
  - {name: pfl_research, partition: dirichlet_pfl_research, partition_options: {samples: 100}}
clients: 10
rounds: 15
model: mlp
model_options: {hidden: 64}
lr: 0.05
"""


def main(folder: Path) -> None:
    """Run what is missing and print the tables."""
    (folder / "dialects.yaml").write_text(GRID, encoding="utf-8")
    found = bench.run(folder / "dialects.yaml", out=folder / "run", quiet=True, jobs=1).results
    chosen = (found["metric"] == "pm") & (found["on"] == "local") & (found["mean"] == "equal")
    chosen &= found["selection"] == "last"
    scores = found[chosen].pivot_table(index="label", columns=["case", "seed"], values="value")
    means = scores.T.groupby(level="case", sort=False).mean().T
    ranks = means.rank(ascending=False).astype(int)
    print(markdown((100 * means).round(1).astype(str) + " (" + ranks.astype(str) + ")"), end="\n\n")
    print(markdown(means.corr(tau).round(2)), end="\n\n")
    print(markdown(pd.DataFrame({"between seeds": {case: between_seeds(scores[case]) for case in means}}).T.round(2)))


def tau(one: object, other: object) -> float:
    """Kendall's tau-b."""
    return float(kendalltau(one, other).statistic)


def between_seeds(scores: pd.DataFrame) -> float:
    """Mean tau of the rankings by each two seeds."""
    return sum(tau(scores[a], scores[b]) for a, b in combinations(scores, 2)) / 3


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table, its index as the first column."""
    head = ["", *map(str, table.columns)]
    rows = [head, ["---"] * len(head), *([str(name), *map(str, row)] for name, *row in table.itertuples())]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as scratch:
            main(Path(scratch))
