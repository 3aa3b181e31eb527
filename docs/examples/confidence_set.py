"""Which methods of the league may be the best? A cross-check of its tiers by another procedure.

    python docs/examples/confidence_set.py                       # the entries that come with the harness
    python docs/examples/confidence_set.py runs/league_2_small/*.tar.xz

Prints the model confidence set (Hansen, Lunde and Nason 2011, Econometrica 79), by `arch`, beside the ranks and tiers
of the league's page. Its losses are minus the logits of accuracy in every block, a task with a draw of tuning,
weighted so that data families count the same; blocks are resampled independently.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from arch.bootstrap import MCS

from bench.results.pack import unpack
from reports.league.rule import by_case, ranked, task_weights
from reports.league.shipped import shipped
from reports.reading.load import GM, PM, Store, load
from reports.statistics.best import logits

SIZE = 0.05


def losses(store: Store, scores: dict[str, list[np.ndarray]]) -> pd.DataFrame:
    """Blocks x methods: what is missing, on the logit scale, to the mean of all methods."""
    weights = len(store.tasks) * task_weights(store, store.tasks)
    blocks = {
        row: np.concatenate([-weight * logits(units) for weight, units in zip(weights, tasks, strict=True)])
        for row, tasks in scores.items()
    }
    frame = pd.DataFrame(blocks)
    return frame.sub(frame.mean(axis=1), axis=0)


def main() -> None:
    """Print a table for personalized models and one for generic ones."""
    files = [Path(name) for name in sys.argv[1:]] or shipped("league_2_small")
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            unpack(file, Path(scratch, file.name))
        compare(by_case(load([Path(scratch, file.name) for file in files])))


def compare(store: Store) -> None:
    """Print them of a store, which reads some of its cells' files only now."""
    for figure in (PM, GM):
        compared, places = ranked(store, figure)
        if not places:  # fewer than two methods train this model
            continue
        found = MCS(losses(store, compared.scores), size=SIZE, reps=2000, block_size=1, method="R", seed=0)
        found.compute()
        p_values = found.pvalues["Pvalue"]
        print(f"\n{figure.text}\n\n| method | rank | tier | p | in the set |\n|---|---:|---:|---:|---|")
        for row in sorted(compared.scores, key=lambda row: -places[row].mean):
            place = places[row]
            inside = "yes" if row in found.included else "no"
            print(f"| {row} | {place.first}–{place.last} | {place.tier} | {p_values[row]:.3f} | {inside} |")


if __name__ == "__main__":
    main()
