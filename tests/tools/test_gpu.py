"""`make gpu` where there is no GPU: it says so, and its table compares what two runs have in common."""

import sys
from pathlib import Path

import pytest

import bench
from tools import gpu


def test_without_a_gpu_it_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    assert "no GPU here" in capsys.readouterr().out


@pytest.mark.long
def test_its_table_says_how_far_apart_two_runs_are(tmp_path: Path) -> None:
    """Of two methods after each of two rounds; the learning rate stands for another device."""
    common = ["seeds=[0]", "alphas=[1]", "eval_every=1", "rounds=2", "methods=[fedavg, local]"]
    for place, lr in (("processor", 0.05), ("gpu", 0.05), ("other", 0.5)):
        bench.run("quickstart", out=tmp_path / "mlp" / place, overrides=[*common, f"lr={lr}"], quiet=True)
    same = gpu.differences(tmp_path, "mlp")
    assert sorted(same["label"]) == ["fedavg", "local"]
    assert (same["accuracies"] >= 2).all()
    assert (same["largest difference"] == 0).all()
    assert (same["last, processor"] == same["last, GPU"]).all()
    (tmp_path / "mlp" / "gpu").rename(tmp_path / "first")
    (tmp_path / "mlp" / "other").rename(tmp_path / "mlp" / "gpu")
    assert (gpu.differences(tmp_path, "mlp")["largest difference"] > 0).any()
