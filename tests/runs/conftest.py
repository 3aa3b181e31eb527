import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bench.cli import main
from bench.rng import generator
from bench.settings import Settings
from tests.engine.problems import needed
from tests.runs.helpers import make_run
from tests.warm import PATIENCE, Start

HERE = Path(__file__).parent

COMMON = {"partition": "dirichlet", "clients": 4, "model": "logistic", "lr": 0.5, "batch_size": 10}

Bench = Callable[..., "subprocess.CompletedProcess[str]"]
Cell = Callable[..., Settings]
Grid = Callable[..., Path]


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 small images of three classes that a logistic model learns, but not in the first round."""
    return write_arrays(tmp_path_factory.mktemp("data") / "blobs.npz")


def write_arrays(path: Path) -> Path:
    """Write the images of `arrays`."""
    rng = generator("tests", "arrays")
    labels = rng.integers(3, size=240)
    images = rng.normal(100 + 20 * labels[:, None, None], 60, size=(240, 6, 6)).clip(0, 255).astype(np.uint8)
    np.savez(
        path, train_images=images[:180], train_labels=labels[:180], test_images=images[180:], test_labels=labels[180:]
    )
    return path


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new SQLite store; MLflow needs seconds to make one, so the tests copy it."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A separate SQLite store for this test."""
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts of stores that are not ours here
    return f"sqlite:///{shutil.copy(empty_store, tmp_path / 'own.db')}"


@pytest.fixture
def odd_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The odd methods, registered in this process."""
    monkeypatch.syspath_prepend(str(HERE))
    importlib.import_module("odd_methods")


@pytest.fixture(scope="session")
def whole(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three finished cells."""
    return make_run(tmp_path_factory.mktemp("whole") / "run", arrays, ("fedavg", "local", "ditto"), rounds=2)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def cell(arrays: Path) -> Callable[..., Settings]:
    """Settings of a small cell."""

    def make(**changes: object) -> Settings:
        """Settings with these changes; there are public samples for methods that need some."""
        public = {"name": "npz", "path": str(arrays), "size": 20}
        base: dict[str, Any] = {**COMMON, **_data(arrays), "method": "fedavg", "alpha": 1.0, "rounds": 6}
        base["public"] = public
        if adapters := needed(str(changes.get("method", base["method"]))):
            base |= {**adapters, "model": "mlp", "model_options": {"hidden": 5}}
        return Settings(**{**base, **changes})

    return make


@pytest.fixture
def grid(arrays: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a grid file of small cells."""

    def write(**changes: object) -> Path:
        options = _data(arrays)
        datasets = [{"name": options["dataset"], **options["dataset_options"]}]
        content = {**COMMON, "datasets": datasets, "alphas": [1.0], "seeds": [0], "rounds": 6, **changes}
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


@pytest.fixture
def start(start_in: Start, tmp_path: Path) -> Start:
    """Start the command `bench` in an empty folder."""
    return lambda *arguments: start_in([*map(str, arguments)], tmp_path)


@pytest.fixture
def bench(start: Start) -> Bench:
    """Run the command `bench` to its end and check that its exit status is `code`."""

    def run(*arguments: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        with start(*arguments) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, f"exit status {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def bench_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Bench:
    """Run the command `bench` in this process, which saves the imports, and check that its exit status is `code`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, f"exit status {ended.value.code}\n{out}\n{err}"
        return subprocess.CompletedProcess(sys.argv, code, out, err)

    return run


def _data(arrays: Path) -> dict[str, object]:
    return {"dataset": "npz", "dataset_options": {"path": str(arrays)}}
