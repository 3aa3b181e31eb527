"""docs/examples/pretrain.py and pretrained_table.py: a network trained on some classes, as a start for the others."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bench
from bench.models.factory import build
from tests.conftest import ROOT
from tests.warm import Python


@pytest.mark.long
def test_half_of_the_classes_is_a_start_for_the_other_half(tmp_path: Path, python: Python) -> None:
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
        ROOT / "docs" / "examples" / "pretrain.py", "pictures.npz", "--classes", "1", "3",
        "--model", "mlp", "--epochs", "4", "--set", "augment=none", "--set", "lr=0.01", "--out", "out",
    ]  # fmt: skip
    for left in (1, 0):
        done = python(*command, folder=tmp_path)
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


@pytest.mark.long
def test_the_table_has_a_row_for_each_entry(tmp_path: Path, python: Python) -> None:
    """Bytes are those of float32 numbers that are trained and shared: 4 x 10 of the body, 10 x 3 of the head."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 1500), ("test", 900)):
        labels = np.arange(size) % 3
        arrays |= {f"{part}_labels": labels, f"{part}_images": rng.normal(labels[:, None], 0.5, (size, 4))}
    np.savez(tmp_path / "others.npz", **{key: x.astype("f4" if x.ndim == 2 else "i8") for key, x in arrays.items()})
    net = build("mlp", (4,), 3, {"hidden": 10})
    torch.save({name: torch.ones(value.shape) / 9 for name, value in net.state_dict().items()}, tmp_path / "weights.pt")
    changes = ["model=mlp", "model_options={hidden: 10}", "rounds=2", "seeds=[0, 1]"]
    command = [
        ROOT / "docs" / "examples" / "pretrained_table.py", tmp_path, "--out", tmp_path / "run",
        *(word for change in changes for word in ("--set", change)),
    ]  # fmt: skip
    done = python(*command, folder=tmp_path)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    rows = {(trained, method): values for trained, method, *values in lines[2:]}
    assert len(rows) == 11
    head, a, b = 10 * 3 + 3, 8 * 4, 10 * 8
    up = {
        ("full", "fedavg"): 4 * 10 + 10 + head, ("full", "fedper"): 4 * 10 + 10, ("head", "ditto"): head,
        ("lora", "fedavg"): a + b + head, ("lora", "ffa_lora"): b + head, ("lora", "fedsa_lora"): a,
    }  # fmt: skip
    for entry, numbers in up.items():
        assert rows[entry][3] == f"{4 * numbers:,}", entry
    assert [rows["full", "fedavg"][1], rows["lora", "fedsa_lora"][0]] == ["–", "–"]
    assert all("±" in rows["lora", "feddpa"][at] for at in (0, 1))
