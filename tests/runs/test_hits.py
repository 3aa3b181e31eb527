"""Which test samples were predicted correctly: stored as bits, and for the same samples as the accuracies."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.federation.cell_data import load_all
from bench.settings import Settings
from reports.tables.pool_error import error
from tests.runs.helpers import finished

SMALL: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "clients": 6, "alpha": 0.3, "rounds": 3, "epochs": 1, "lr": 0.1,
    "new_clients": 1, "protocol": "honest", "validation_share": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "metrics"),
    [("fedavg", ["gm"]), *(pytest.param(m, ["gm", "pm"], marks=pytest.mark.long) for m in ("ditto", "local"))],
)
def test_the_bits_are_the_accuracies(method: str, metrics: list[str], tmp_path: Path) -> None:
    cell = finished(Settings(method=method, **SMALL), tmp_path / method)
    assert sorted(set(cell.table("hits")["metric"])) == metrics
    _, partition, _ = load_all(cell.settings, Path("data"))
    clients, scores = cell.table("clients"), cell.table("metrics")
    for metric in metrics:
        for round in (1, 3):
            hits = cell.hits(metric, round=round)
            for client, own in hits.groupby("client"):
                assert own["sample"].tolist() == partition.test[client].tolist()
            found = hits.groupby("client")["correct"].agg(["sum", "size"])
            of = (clients["metric"] == metric) & (clients["split"] == "test") & (clients["round"] == round)
            expected = clients[of].set_index("client")
            assert found["sum"].tolist() == expected["correct"].tolist()
            assert found["size"].tolist() == expected["samples"].tolist()
    whole = cell.hits("gm", "global", round=3)
    of = (scores["on"] == "global") & (scores["split"] == "test") & (scores["quantity"] == "accuracy")
    assert whole["correct"].mean() == scores[of & (scores["round"] == 3)]["value"].item()
    assert cell.hits(metrics[-1]).equals(cell.hits(metrics[-1], round=3))
    (cell.folder / "hits.csv").unlink()  # as in a packed run
    assert cell.hits("gm").empty


def frame(weights: list[float], right: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"weight": weights, "hits": 100 * np.array(weights) * right})


def test_the_error_by_hand() -> None:
    """Weights 1/2, 1/4, 1/4, the first two right: 75 %; weighted deviations 0.5 (1 - 0.75), 0.25 (1 - 0.75),
    -0.1875."""
    left = np.array([0.125, 0.0625, -0.1875])
    assert error(frame([0.5, 0.25, 0.25], [1, 1, 0])) == pytest.approx(100 * np.sqrt(1.5 * (left**2).sum()))
    assert error(frame([0.5, 0.25, 0.25], [1, 1, 1])) == 0
    assert np.isnan(error(frame([1.0], [1])))


@pytest.mark.long
def test_the_error_is_the_spread_over_pools() -> None:
    """For the difference of two methods that agree on most of 300 photographs, drawn 2,000 times."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 1.5, 300)
    weights /= weights.sum()
    differences, errors = [], []
    for _ in range(2000):
        both = np.where(rng.random(300) < 0.1, rng.choice([-1, 1], 300, p=[0.3, 0.7]), 0)
        one = frame(weights.tolist(), both.tolist())
        differences.append(one["hits"].sum())
        errors.append(error(one))
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.05)
