"""docs/examples/pretrain.py and pretrained_table.py: a network trained on some classes, as a start for the others."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bench
from tests.conftest import ROOT
from tests.warm import Python

EXAMPLES = ROOT / "docs" / "examples"
MODEL = ["--set", "model_options={hidden: 10}"]


@pytest.mark.long
def test_half_of_the_classes_is_a_start_for_the_other_half_and_the_table_has_a_row_for_each_entry(
    tmp_path: Path, python: Python
) -> None:
    """The second call has nothing to train; the head is drawn, as there are three classes instead of two.

    Bytes are those of float32 numbers that are trained and shared: 108 x 10 of the body, 10 x 3 of the head.
    """
    rng = np.random.default_rng(0)
    arrays = {}
    for part, samples in (("train", 2500), ("test", 1500)):
        labels = np.arange(samples) % 5
        means = 40 * labels[:, None, None, None]
        arrays[f"{part}_labels"] = labels[:, None]
        arrays[f"{part}_images"] = (rng.integers(0, 60, (samples, 6, 6, 3)) + means).astype("u1")
    np.savez(tmp_path / "pictures.npz", **arrays)
    command = [
        EXAMPLES / "pretrain.py", "pictures.npz", "--classes", "1", "3", "--model", "mlp", *MODEL,
        "--epochs", "4", "--set", "augment=none", "--set", "lr=0.01", "--out", "out",
    ]  # fmt: skip
    for left in (1, 0):
        done = python(*command, folder=tmp_path)
        assert f"{left} cells to run" in done.stderr
        accuracy = float(done.stdout.rpartition("test accuracy")[2].split()[0])
        assert accuracy > 70  # two classes whose means differ by 80 of 256
    weights = torch.load(tmp_path / "out" / "weights.pt")
    assert weights["head.weight"].shape[0] == 2

    command = [EXAMPLES / "pretrained_table.py", tmp_path / "out", "--out", tmp_path / "run", *MODEL]
    done = python(*command, *("--set", "model=mlp", "--set", "rounds=2", "--set", "seeds=[0, 1]"), folder=tmp_path)
    cell = bench.load_run(tmp_path / "run").cells[0].settings
    start = bench.Federation.of(cell).server.initial_model().tensors()
    assert torch.equal(start["body.fc1.weight"], weights["body.fc1.weight"])
    assert start["head.weight"].shape[0] == 3
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    rows = {(trained, method): values for trained, method, *values in lines[2:]}
    assert len(rows) == 11
    head, a, b = 10 * 3 + 3, 8 * 108, 10 * 8
    up = {
        ("full", "fedavg"): 108 * 10 + 10 + head, ("full", "fedper"): 108 * 10 + 10, ("head", "ditto"): head,
        ("lora", "fedavg"): a + b + head, ("lora", "ffa_lora"): b + head, ("lora", "fedsa_lora"): a,
    }  # fmt: skip
    for entry, numbers in up.items():
        assert rows[entry][3] == f"{4 * numbers:,}", entry
    assert [rows["full", "fedavg"][1], rows["lora", "fedsa_lora"][0]] == ["–", "–"]
    assert all("±" in rows["lora", "feddpa"][at] for at in (0, 1))
