"""The notes that a run prints by itself, tested with the real command: at its start, at its end, in status and
report."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.results.remarks import fallbacks, unused_fallbacks
from bench.results.results import CellView
from bench.settings import Settings
from bench.store.store import Status
from tests.broken_torchscript import break_in_commands
from tests.runs.helpers import cells
from tests.warm import PATIENCE, Start

Bench = Callable[..., "subprocess.CompletedProcess[str]"]
Grid = Callable[..., Path]


def notes(text: str) -> list[str]:
    return [line.removeprefix("note: ") for line in text.splitlines() if line.startswith("note: ")]


@pytest.mark.long
def test_clients_without_data_labels_from_one_and_equal_methods_are_said(
    bench: Bench, bench_here: Bench, grid: Grid, tmp_path: Path
) -> None:
    """Three classes, called 1 to 3, for six clients at alpha = 0.0001: only two clients get samples. SCD's
    regularization is off, so that its models are those of FedAvg and Local. Ditto shares only its generic model with
    FedAvg, which is expected."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3 + 1
    np.savez(tmp_path / "own.npz", train_images=rng.normal(labels[:, None], 1, (120, 5)), train_labels=labels)
    methods = ["fedavg", "local", {"name": "scd", "lambda_g": 0.0, "lambda_p": 0.0}, {"name": "ditto", "lam": 5.0}]
    common = {"methods": methods, "datasets": [{"name": "npz", "path": str(tmp_path / "own.npz")}], "rounds": 3}
    file = grid(**common, alphas=[0.0001], clients=6, seeds=[0, 1])
    done = bench("run", "--grid", file, "--out", "run", "--device", "cpu", "--jobs", 2)
    expected = [
        "own: the labels that occur are its classes, numbered 0 to 2 in this order: 1, 2, 3",
        "own alpha=0.0001: 4 of 6 clients have no training samples and take no part (seeds 0, 1)",
        "scd: every accuracy is another method's to the last digit (GM: ditto and fedavg, PM: local) "
        "on own alpha=0.0001",
    ]
    assert notes(done.stderr) == expected
    assert done.stderr.index(expected[0]) < done.stderr.index("cells to run") < done.stderr.index(expected[-1])
    assert notes(bench_here("status", "run").stdout) == expected
    bench_here("report", "run")
    page = (tmp_path / "run" / "report" / "index.html").read_text(encoding="utf-8")
    assert page.count("<p>Note: ") == 3
    assert "<p>Note: own alpha=0.0001: 4 of 6 clients have no training samples" in page


@pytest.mark.long
def test_a_client_that_trains_and_is_never_tested_is_counted(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """With a split file in which only the second client has test samples."""
    (tmp_path / "split.json").write_text('{"train": [[0, 1, 2, 3], [4, 5, 6, 7]], "test": [[], [8, 9]]}')
    file = grid(
        methods=["fedavg"], alphas=None, clients=2, partition="file", partition_options={"path": "split.json"}, rounds=1
    )
    file.write_text(file.read_text().replace("alphas: null\n", ""))
    said = bench_here("run", "--grid", file, "--out", "run", "--device", "cpu", "--jobs", 1).stderr
    assert "note: blobs: 1 of 2 clients train and have no test samples: no local figure counts them (seed 0)" in said


@pytest.mark.long
def test_an_ordinary_run_says_nothing(bench_here: Bench, grid: Grid) -> None:
    """But of an option that did nothing."""
    file = grid(methods=["fedavg", "local"], alphas=[100.0], rounds=2)
    command = ("run", "--grid", file, "--out", "run", "--device", "cpu", "--jobs", 1)
    assert notes(bench_here(*command).stderr) == []
    said = notes(bench_here(*command, "--allow-fallback", "grapf").stderr)
    assert said == ["--allow-fallback grapf: nothing of that name failed on a GPU; leave it out"]


def test_several_reasons_are_one_line(cell: Callable[..., Settings], tmp_path: Path) -> None:
    """A loss that cannot be mapped is one, too; what else a cell warns of, or that it cannot record, is none."""
    backend = "the backend torchscript failed and graph takes its place: KeyError"
    statuses = [
        Status(steps="fallen back", warnings=["mu = 0: FedProx is FedAvg", backend]),
        Status(steps="fallen back", warnings=[backend, "mine cannot be mapped over clients and runs one by one: no"]),
        Status(steps="recorded", warnings=["mu = 0: FedProx is FedAvg"]),
        Status(steps="eager"),
    ]
    views = [CellView(str(at), "", cell(), tmp_path, status) for at, status in enumerate(statuses)]
    line = f"2 of 4 cells trained more slowly than they could: {backend}"
    assert fallbacks(views) == [f"{line} (other reasons: 1; `bench log RUN CELL` has them)"]
    assert fallbacks([*views, *views]) == fallbacks(views)  # cells that several labels share
    assert fallbacks(views[2:]) == []
    assert unused_fallbacks(["torchscript", "mine"], views) == []
    told = "--allow-fallback {}: nothing of that name failed on a GPU; leave it out"
    assert unused_fallbacks(["script", "mine", "fed"], views) == [told.format("script"), told.format("fed")]


@pytest.mark.long
@pytest.mark.parametrize(("how", "error"), [("import", "ImportError"), ("recording", "OSError")])
def test_a_backend_that_failed_in_all_cells_is_said_once(
    how: str, error: str, fresh: Start, environment: dict[str, str], bench_here: Bench, grid: Grid, tmp_path: Path
) -> None:
    """TorchScript is broken in every process of the command, as it would be on a machine without it."""
    break_in_commands(tmp_path, how)
    file = grid(methods=["fedavg", "local"], rounds=2, epochs=20)
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    arguments = ["run", "--grid", str(file), "--out", "run", "--device", "cpu", "--jobs", "2", "--no-tracking"]
    with fresh(arguments, tmp_path, {"PYTHONPATH": path}) as process:
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    expected = f"the backend torchscript failed and graph takes its place: {error}: out of order"
    assert notes(said) == [f"2 of 2 cells trained more slowly than they could: {expected}"]
    assert notes(bench_here("status", "run").stdout) == notes(said)
    assert [cell.status.warnings for cell in cells(tmp_path / "run").values()] == [[expected]] * 2
