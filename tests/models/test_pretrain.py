"""docs/examples/pretrain.py: training on some classes, as a start for federations on the others."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bench
from tests.conftest import ROOT


@pytest.mark.long
def test_half_of_the_classes_is_a_start_for_the_other_half(tmp_path: Path, environment: dict[str, str]) -> None:
    """The second call has nothing to train; the head is drawn, as there are three classes instead of two."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, samples in (("train", 100), ("test", 50)):
        labels = np.arange(samples) % 5
        arrays[f"{part}_labels"] = labels[:, None]
        arrays[f"{part}_images"] = (rng.integers(0, 60, (samples, 6, 6, 3)) + 40 * labels[:, None, None, None]).astype(
            "u1"
        )
    np.savez(tmp_path / "pictures.npz", **arrays)
    command = [
        sys.executable, ROOT / "docs" / "examples" / "pretrain.py", "pictures.npz", "--classes", "1", "3",
        "--model", "mlp", "--epochs", "4", "--set", "augment=none", "--set", "lr=0.01", "--out", "out",
    ]  # fmt: skip
    for left in (1, 0):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"{left} cells to run" in done.stderr
        accuracy = float(done.stdout.rpartition("test accuracy")[2].split()[0])
        assert accuracy > 70  # two classes whose means differ by 80 of 256
    weights = torch.load(tmp_path / "out" / "weights.pt")
    assert weights["head.weight"].shape[0] == 2
    grid = {
        "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(tmp_path / "out" / "others.npz")}],
        "alphas": [1.0], "clients": 2, "rounds": 1, "model": "mlp", "pretrained": str(tmp_path / "out" / "weights.pt"),
    }  # fmt: skip
    [cell] = bench.load_grid(grid).cells
    dataset = bench.load_dataset(cell)
    assert np.bincount(dataset.y).tolist() == [30, 30, 30]
    federation = bench.Federation(cell, dataset=dataset, partition=bench.load_partition(cell, dataset), public=None)
    start = federation.server.initial_model().tensors()
    assert torch.equal(start["body.fc1.weight"], weights["body.fc1.weight"])
    assert start["head.weight"].shape[0] == 3
