"""Choice of the round of a cell that is reported.

- Protocol `honest`: the code that chooses a round (`choose_round`) sees validation accuracies only. One round is chosen
  for all clients: the generic model's by its pooled validation accuracy, the personalized models' by the validation
  accuracies weighted with the clients' data sizes. It is the round with the best mean of the last `WINDOW` validation
  accuracies, the latest of equals, because the peak of a noisy curve mostly lies in an early lucky round
  (docs/examples/reported_round.py). Beside its test figure stand those of that peak (`peak`), of the last round
  (`last`), and the mean of the last `WINDOW` evaluations (`tail`).
- Protocol `paper`: there is no validation data, and the best test figure is reported, as the papers do.
- Where the data change (`timeline`), only rounds after the last change count: one before it knew other data.
- A model right after local training (`lm`) exists only for clients that have trained. For it, rounds count in which as
  many clients are scored as in the last one. Otherwise the best round could be one in which few clients had trained.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.settings import MAIN_MEANS, RECORDED

if TYPE_CHECKING:
    import pandas as pd

WINDOW = 5
"""Evaluations over which a validation curve is averaged before its best round is taken."""

COSTS = frozenset({"loss", "nll", "brier", "ece"})
"""Scores of which the smallest value is the best; of all others, the user's own among them, it is the largest."""

Curve = Mapping[int, float]
"""Values of a score by round, in the order of the rounds."""
CurveKey = tuple[str, str, str, str]
"""Split, metric, where it is scored (`on`) and mean."""
Curves = dict[CurveKey, Curve]
"""The curves of a score."""


def choose_round(validation: Curve) -> int:
    """The round with the best mean of the last `WINDOW` validation accuracies, the latest of equals.

    Args:
        validation: at least one accuracy.
    """
    means = trailing_means(validation)
    return max(reversed(means), key=means.__getitem__)


def trailing_means(curve: Curve) -> dict[int, float]:
    """Mean of the last `WINDOW` values at each round, or of as many as there are by then.

    Means are rounded, so that those that differ by rounding only are equal.
    """
    values = np.array([*curve.values()], float)
    means = [values[max(0, end - WINDOW) : end].mean() for end in range(1, len(values) + 1)]
    return dict(zip(curve, np.round(means, 12).tolist(), strict=True))


def chosen_rounds(curve: Curve, selecting: Curve, protocol: str) -> dict[str, int]:
    """Choose rounds of a test curve by its protocol: the rounds by the name of the selection."""
    if protocol == "paper":
        return {"best": _first_best(curve)}
    # a round can have a validation figure alone: its clients may have validation samples and no test samples
    choosing = {round_: value for round_, value in selecting.items() if round_ in curve}
    return {"validation": choose_round(choosing), "peak": _first_best(choosing)} if choosing else {}


def table_of(quantity: str) -> str:
    """The table that has a score by round: `metrics` or `scores`."""
    return "metrics" if quantity in RECORDED else "scores"


def reported_round(curves: Curves, selecting: Curves, metric: str, protocol: str) -> int | None:
    """The round whose test figures of a metric, `gm` or `pm`, a report shows; None where there is none yet.

    Args:
        curves: accuracies up to now; a round that is chosen in the end was chosen when it was the last one.
        selecting: curves of the score that chooses (`selecting_curves`).
    """
    place = "global" if metric == "gm" else "local"
    tests = [
        (on, curve)
        for (split, name, on, mean), curve in curves.items()
        if (split, name) == ("test", metric) and mean in MAIN_MEANS
    ]
    if not tests:
        return None
    curve = dict(tests).get(place, tests[0][1])
    chosen = chosen_rounds(curve, selection_curve(selecting, metric), protocol)
    return chosen.get("best", chosen.get("validation", max(curve)))


def after(curves: Curves, round: int) -> Curves:
    """The curves of the rounds after one: those since the last change of the data (`Settings.last_change`)."""
    if not round:
        return curves
    later = {key: {at: value for at, value in curve.items() if at > round} for key, curve in curves.items()}
    return {key: curve for key, curve in later.items() if curve}


def _first_best(curve: Curve) -> int:
    return max(curve, key=curve.__getitem__)


def selecting_curves(curves: Curves, quantity: str) -> Curves:
    """Curves of a score by which rounds are chosen: larger values are better, and missing ones are left out."""
    if quantity == "accuracy":
        return curves
    sign = -1 if quantity in COSTS else 1
    return {
        key: {round_: sign * value for round_, value in curve.items() if not math.isnan(value)}
        for key, curve in curves.items()
    }


def curves_of_cells(table: "pd.DataFrame", lengths: Sequence[int], quantity: str = "accuracy") -> list[Curves]:
    """Curves of a score of cells whose tables (`table_of`) stand below each other: `lengths` rows each."""
    of_score = (table["quantity"] == quantity).to_numpy()
    columns = (table.loc[of_score, name].tolist() for name in ("split", "metric", "on", "mean", "round", "value"))
    cells = np.repeat(np.arange(len(lengths)), lengths)[of_score].tolist()
    curves: list[dict[CurveKey, dict[int, float]]] = [{} for _ in lengths]
    for cell, split, metric, on, mean, round_, value in zip(cells, *columns, strict=True):
        curves[cell].setdefault((split, metric, on, mean), {})[round_] = float(value)
    return [{key: dict(sorted(curve.items())) for key, curve in of_cell.items()} for of_cell in curves]


def selection_curve(curves: Curves, metric: str) -> Curve:
    """The validation scores by round by which a metric's round is chosen: pooled for the GM, n_i-weighted else."""
    pooled = curves.get(("validation", metric, "global", ""))
    weighted = curves.get(("validation", metric, "local", "train_size"), {})
    return pooled if metric == "gm" and pooled is not None else weighted
