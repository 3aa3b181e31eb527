"""Cells on inputs of every kind: an offset hides no class, and a kept model agrees with the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from bench.data import Array
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.runs.cell_options import Options
from bench.settings import Settings
from tests.engine import problems  # noqa: F401 (registers a model with BatchNorm)
from tests.runs.helpers import finished

KINDS: dict[str, dict[str, Any]] = {
    "images": {"array": "images", "shape": (16, 16, 3), "model": "cnn", "options": {"hidden": 8}},
    "series": {"array": "series", "shape": (3, 16), "model": "har_cnn", "options": {"hidden": 6, "filters": 4}},
    "features": {"array": "images", "shape": (6,), "model": "mlp", "options": {"hidden": 8}},
}
COMMON: dict[str, Any] = {"method": "fedavg", "clients": 3, "alpha": 5.0, "rounds": 2, "lr": 0.05, "batch_size": 16}


def raw(kind: str) -> tuple[Array, Array]:
    """Whole numbers 0 .. 255 of which one channel tells the classes apart, and the labels."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 256, (120, *KINDS[kind]["shape"])).astype(np.float32)
    channel = x[..., 0] if kind == "images" else x[:, 0]
    channel[...] = np.rint(channel / 4 + 60 * y.reshape(-1, *[1] * (channel.ndim - 1)))
    return x, y


def settings(file: Path, kind: str, x: Array, y: Array, **changes: Any) -> Settings:
    """A cell on these arrays, which are written to a file."""
    array = KINDS[kind]["array"]
    arrays = {f"train_{array}": x[:90], "train_labels": y[:90], f"test_{array}": x[90:], "test_labels": y[90:]}
    np.savez(file, **arrays)
    network = {"model": KINDS[kind]["model"], "model_options": KINDS[kind]["options"]}
    return Settings(**{**COMMON, **network, "dataset": "npz", "dataset_options": {"path": str(file)}, **changes})


def test_a_channel_with_an_offset_does_not_hide_the_classes(tmp_path: Path) -> None:
    """Two classes told apart by one of five features, which is shifted by 10 of its deviations."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = rng.normal(size=(120, 5)).astype(np.float32)
    x[:, 4] = 10 + np.where(y == 1, 1, -1) + 0.1 * x[:, 4]
    cell = settings(tmp_path / "x.npz", "features", x, y, model="logistic", model_options={}, lr=1.0, rounds=6)
    federation = Federation.of(cell)
    for _ in range(cell.rounds):
        federation.advance()
    scores = [row["value"] for row in federation.evaluate().metrics if row["quantity"] == "accuracy"]
    assert min(scores) == 1


@pytest.mark.parametrize(
    ("kind", "stored", "changes"),
    [
        ("images", "bytes", {}),
        ("images", "0..1", {"precision": "bf16"}),
        ("series", "0..1", {}),
        ("series", "far away", {"shifts": [{"name": "corruption", "kinds": ["none", "noise"]}]}),
        ("features", "far away", {}),
        *(
            pytest.param(kind, stored, changes, marks=pytest.mark.long)
            for kind, stored, changes in [
                ("images", "0..1", {"shifts": [{"name": "rotation", "groups": 3}]}),
                ("images", "0..255", {"augment": "crop_flip", "model": "test_norm", "model_options": {}}),
                ("features", "0..255", {"precision": "bf16"}),
                ("features", "far away", {"dtype": "float64", "precision": "fp32"}),
                ("features", "far away", {"precision": "bf16", "model": "test_norm", "model_options": {}}),
            ]
        ),
    ],
)
def test_a_kept_model_has_the_reported_accuracy_and_loss(
    kind: str, stored: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    x, y = raw(kind)
    kinds = {"bytes": x.astype(np.uint8), "0..1": x / 255, "0..255": x, "far away": x / 100 + 1000}
    cell = settings(tmp_path / "own.npz", kind, kinds[stored], y, **changes)
    view = finished(cell, tmp_path / "cell", Options(device="cpu", keep="all", checkpoint_seconds=0))
    data, partition, _ = load_all(cell)
    tests = partition.global_test if len(partition.global_test) else np.concatenate(partition.test)
    with torch.no_grad():
        logits = view.model()(torch.from_numpy(data.x[tests]))
    labels = torch.from_numpy(data.y[tests])
    found = {
        "accuracy": (logits.argmax(1) == labels).double().mean().item(),
        "loss": functional.cross_entropy(logits, labels).item(),
    }
    metrics = view.table("metrics")
    rows = metrics[(metrics["round"] == cell.rounds) & (metrics["metric"] == "gm") & (metrics["split"] == "test")]
    for quantity, value in found.items():
        reported = rows[(rows["quantity"] == quantity) & (rows["on"] == "global")]["value"].item()
        assert value == pytest.approx(reported, rel=1e-5 if cell.precision == "fp32" else 1e-2), quantity
