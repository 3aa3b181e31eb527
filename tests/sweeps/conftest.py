from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from bench.rng import generator
from tests.warm import PATIENCE, Start

Bench = Callable[..., str]
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 small images of three classes that a logistic model learns, but not in the first round."""
    rng = generator("tests", "sweeps", "arrays")
    labels = rng.integers(3, size=200)
    images = rng.normal(100 + 20 * labels[:, None, None], 60, size=(200, 6, 6)).clip(0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(
        path, train_images=images[:150], train_labels=labels[:150], test_images=images[150:], test_labels=labels[150:]
    )
    return path


@pytest.fixture
def write(arrays: Path, tmp_path: Path) -> Write:
    """Write a study file of small cells; `grid` changes its grid, other arguments change the study."""

    def write(grid: dict[str, object] | None = None, **changes: object) -> Path:
        base = {
            "methods": ["fedprox"], "datasets": [{"name": "npz", "path": str(arrays)}], "alphas": [1.0],
            "clients": 4, "model": "logistic", "lr": 0.1, "batch_size": 10, "rounds": 5,
        }  # fmt: skip
        study = {
            "grid": {**base, **(grid or {})}, "space": {"lr": {"low": 0.01, "high": 1.0, "log": True}},
            "trials": 3, "pruner": "none", "seeds": [100, 101], "report_seeds": [0, 1],
        }  # fmt: skip
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({**study, **changes}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def bench(start_in: Start, tmp_path: Path) -> Bench:
    """Run the command `bench` to its end, and check that its exit status is `code`; what it said."""

    def run(*arguments: object, folder: Path = tmp_path, code: int = 0) -> str:
        with start_in([*map(str, arguments)], folder) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, out + err
        return out + err

    return run


@pytest.fixture
def start(start_in: Start, tmp_path: Path) -> Start:
    """Start `bench sweep`; its pool has one worker unless the arguments say otherwise."""
    options = ["sweep", "--device", "cpu", "--no-tracking"]
    return lambda *arguments: start_in([*options, *map(str, arguments)], tmp_path)
