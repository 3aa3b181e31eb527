"""Which round should be reported? Rules on the curves of a run and on simulated ones: docs/reports.md.

python docs/examples/reported_round.py RUN
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.results.reported_round import WINDOW, choose_round, curves_of_cells, selection_curve
from bench.results.results import load_run
from bench.rng import generator

Floats = npt.NDArray[np.float64]
ROUNDS = 30
RULES: dict[str, Callable[[Floats], npt.NDArray[np.int64]]] = {  # positions of the rounds that are averaged
    "earliest peak": lambda v: np.array([v.argmax()]),
    "last": lambda v: np.array([len(v) - 1]),
    "mean of the last five": lambda v: np.arange(len(v))[-WINDOW:],
    "best trailing mean": lambda v: np.array([choose_round(dict(enumerate(v)))]),
}


def run_gaps(run: Path) -> dict[str, list[float]]:
    """Test accuracy at the reported round less that of the last round, in points, of models that methods train."""
    gaps: dict[str, list[float]] = {rule: [] for rule in RULES}
    for cell in load_run(run).cells:
        table = cell.table("metrics")
        [curves] = curves_of_cells(table, [len(table)])
        for metric, on, mean in (("gm", "global", ""), ("pm", "local", "train_size")):
            if metric in cell.status.derived:
                continue
            test, chosen_by = curves["test", metric, on, mean], selection_curve(curves, metric)
            rounds = [round_ for round_ in test if round_ in chosen_by]
            values = np.array([test[round_] for round_ in rounds])
            for rule, choose in RULES.items():
                at = choose(np.array([chosen_by[round_] for round_ in rounds]))
                gaps[rule].append(float(100 * (values[at].mean() - values[-1])))
    return gaps


def simulated(true: Floats, noise: float) -> dict[str, float]:
    """Mean accuracy at the reported round less the best true one: the models move from round to round, too."""
    rng = generator("reported round")
    found = dict.fromkeys(RULES, 0.0)
    for _ in range(2000):
        model = true + rng.normal(0, noise / 2, len(true))
        seen = model + rng.normal(0, noise, len(true))
        for rule, choose in RULES.items():
            found[rule] += float(model[choose(seen)].mean() - true.max()) / 2000
    return found


if __name__ == "__main__":
    for rule, gaps in run_gaps(Path(sys.argv[1])).items():
        worse, better = (100 * np.mean(np.sign(gaps) == sign) for sign in (-1, 1))
        print(
            f"{rule}: {np.mean(gaps):+.2f} ({len(gaps)} curves; worse than last {worse:.0f} %, better {better:.0f} %)"
        )
    r = np.arange(1, ROUNDS + 1)
    shapes = {
        "rising": 95 - 60 * np.exp(-r / 12),
        "flat": 95 - 60 * np.exp(-r / 3),
        "early peak": 95 - 60 * np.exp(-r / 2) - 0.15 * np.maximum(0, r - 8),
        "late drop": 95 - 60 * np.exp(-r / 3) - 0.6 * np.maximum(0, r - 25),
    }
    for shape, true in shapes.items():
        for noise in (0.5, 1.5):
            said = ", ".join(f"{rule} {value:+.2f}" for rule, value in simulated(true, noise).items())
            print(f"{shape}, validation noise {noise}: {said}")
