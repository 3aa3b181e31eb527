"""Scores that a cell's `metrics` ask for: from the logits that the engine hands over, per client and in the mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from bench.federation.cell_data import load_all
from bench.federation.federation import Evaluation, Federation
from bench.plugin import METRICS
from bench.settings import Settings
from tests.later import Later

sklearn_metrics = Later("sklearn.metrics")

METRICS_ASKED = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision", "nll", "brier", "ece")
SMALL: dict[str, Any] = {
    "method": "ditto", "alpha": 0.05, "clients": 8, "seed": 2, "rounds": 2, "model": "logistic", "lr": 0.1,
    "new_clients": 1, "new_client_epochs": [1],
}  # fmt: skip


def evaluated(**changes: Any) -> tuple[Federation, Evaluation, Evaluation]:
    """A federation after its last round, that round's outputs and its scores."""
    federation = Federation.of(Settings(**{**SMALL, **changes}))
    while federation.version < federation.settings.rounds:
        federation.advance()
    return federation, federation.outputs(), federation.evaluate()


@pytest.fixture(scope="module")
def both() -> tuple[Federation, Evaluation, Evaluation]:
    return evaluated(metrics=METRICS_ASKED)


def client_logits(evaluation: Evaluation, partition: Any, metric: str) -> dict[tuple[int, str], np.ndarray]:
    """Logits of personalized (`pm`, `lm`) models by client and split, as the outputs have them: one client after the
    other, validation samples and then test samples."""
    found = {}
    for outputs in evaluation.outputs:
        lists = [(partition.validation[i], partition.test[i]) for ids in outputs.own.values() for i in ids]
        owners = [(name, i) for name, ids in outputs.own.items() for i in ids]
        begin = len(outputs.logits) - sum(len(v) + len(t) for v, t in lists)
        for (name, i), (validation, test) in zip(owners, lists, strict=True):
            for split, samples in (("validation", validation), ("test", test)):
                if name == metric and len(samples):
                    found[i, split] = outputs.logits[begin : begin + len(samples)].double().numpy()
                begin += len(samples)
    return found


@pytest.mark.parametrize("metric", ["pm", "lm", "new1"])
def test_each_clients_scores_are_scikit_learns_on_its_logits(
    both: tuple[Federation, Evaluation, Evaluation], metric: str
) -> None:
    federation, outputs, scores = both
    dataset, partition, _ = load_all(federation.settings, Path("data"))
    logits = client_logits(outputs, partition, metric)
    rows = {(r["client"], r["split"], r["quantity"]): r["value"] for r in scores.client_scores if r["metric"] == metric}
    assert {key[:2] for key in rows} == logits.keys()
    for (client, split), values in logits.items():
        y = dataset.y[getattr(partition, split)[client]]
        p, present = softmax(values, axis=1), np.unique(y)
        f1 = sklearn_metrics.f1_score(y, values.argmax(1), average="macro", zero_division=0.0)
        assert rows[client, split, "macro_f1"] == pytest.approx(f1, rel=1e-12)
        areas = [sklearn_metrics.roc_auc_score(y == c, p[:, c]) for c in present] if len(present) > 1 else [np.nan]
        assert rows[client, split, "auroc"] == pytest.approx(np.mean(areas), rel=1e-12, nan_ok=True)
        assert {key[2] for key in rows} == {name for name in METRICS_ASKED if name != "accuracy"}


def test_means_are_over_the_clients_that_have_the_score(both: tuple[Federation, Evaluation, Evaluation]) -> None:
    federation, _, scores = both
    sizes = {i: len(federation.device_data.partition.train[i]) for i in range(8)}
    areas = {r["client"]: r["value"] for r in scores.client_scores
             if (r["metric"], r["split"], r["quantity"]) == ("pm", "test", "auroc")}  # fmt: skip
    present = {i: value for i, value in areas.items() if not np.isnan(value)}
    assert 0 < len(present) < len(areas), "some client should have one class only"
    means = {r["mean"]: r["value"] for r in scores.scores
             if (r["metric"], r["on"], r["split"], r["quantity"]) == ("pm", "local", "test", "auroc")}  # fmt: skip
    weighted = sum(sizes[i] * value for i, value in present.items()) / sum(sizes[i] for i in present)
    assert means == {"train_size": pytest.approx(weighted), "equal": pytest.approx(np.mean([*present.values()]))}


def test_likelihood_is_the_loss_and_all_rows_stand_beside_those_of_accuracy(
    both: tuple[Federation, Evaluation, Evaluation],
) -> None:
    _, _, scores = both
    keys = ("metric", "on", "mean", "split")
    losses = {tuple(r[k] for k in keys): r["value"] for r in scores.metrics if r["quantity"] == "loss"}
    by_score = {
        name: {tuple(r[k] for k in keys): r["value"] for r in scores.scores if r["quantity"] == name}
        for name in METRICS_ASKED
        if name != "accuracy"
    }
    assert all(rows.keys() == losses.keys() for rows in by_score.values())
    assert by_score["nll"] == {key: pytest.approx(value, rel=1e-5) for key, value in losses.items()}


def test_without_metrics_nothing_is_added_and_with_them_nothing_changes(
    both: tuple[Federation, Evaluation, Evaluation],
) -> None:
    _, _, bare = evaluated()
    assert (bare.scores, bare.client_scores) == ([], [])
    assert (bare.metrics, bare.clients, bare.hits) == (both[2].metrics, both[2].clients, both[2].hits)


def share_of_zero(labels: np.ndarray, logits: np.ndarray) -> float:
    logits[:] = 0  # it has copies
    return np.float32((labels == 0).mean())


def needs_zero(labels: np.ndarray, logits: np.ndarray) -> float:
    if not (labels == 0).any():
        raise ValueError("nobody has a zero")
    return 1.0


def test_own_metrics_are_scored_and_one_that_fails_is_missing_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    METRICS.names()
    own = {"test_share_of_zero": share_of_zero, "test_needs_zero": needs_zero}
    monkeypatch.setattr(METRICS, "_items", {**METRICS._items, **own})
    federation, _, scores = evaluated(metrics=["test_share_of_zero", "test_needs_zero", "auroc"], rounds=1)
    dataset, partition, _ = load_all(federation.settings, Path("data"))
    rows = {(r["client"], r["quantity"]): r["value"] for r in scores.client_scores
            if (r["metric"], r["split"]) == ("pm", "test")}  # fmt: skip
    clients = {client for client, _ in rows}
    for client in clients:
        share = (dataset.y[partition.test[client]] == 0).mean()
        assert rows[client, "test_share_of_zero"] == pytest.approx(share)
        assert np.isnan(rows[client, "test_needs_zero"]) == (share == 0)
    assert any(not np.isnan(rows[client, "auroc"]) for client in clients)
    texts = [text for text in federation.warnings if "test_needs_zero" in text]
    assert len(texts) == 1
    assert "nobody has a zero" in texts[0]
    federation.evaluate()
    assert [text for text in federation.warnings if "test_needs_zero" in text] == texts, "said once"
