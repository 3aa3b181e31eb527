"""A dry run says what arithmetic on settings and tables of costs says, without torch."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

Bench = Callable[..., "subprocess.CompletedProcess[str]"]
Grid = Callable[..., Path]
GRIDS = sorted(grid.stem for grid in (ROOT / "bench" / "grids").glob("*.yaml"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "table1_fast" else pytest.mark.long) for name in GRIDS]
)
def test_a_dry_run_of_a_built_in_grid_takes_no_torch(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """One with `precision: bf16`, too. All but the data is known."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is asked for')\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench.cli", "run", "--grid", name, "--device", "cpu", "--dry-run"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "torch is asked for" not in done.stderr
    assert done.returncode == 0
    assert "no estimate" not in done.stdout
    assert any(" of computing, " in line and line.endswith(" sent") for line in done.stdout.splitlines())


def test_what_settings_say_is_printed_first(bench_here: Bench) -> None:
    """Of 50,000 samples each of 100 clients has 500 under the paper's protocol."""
    said = "500 rounds of 100 of 100 clients, each with about 500 samples and 250 steps whenever it trains a model"
    done = bench_here("run", "--grid", "table1", "--device", "cpu", "--dry-run", "--only", "method=fedavg")
    assert done.stdout.splitlines()[1:4] == [f"cifar10 alpha={alpha}: {said}" for alpha in ("1", "0.5", "0.1")]


def test_each_case_has_the_steps_of_its_clients(bench_here: Bench, grid: Grid) -> None:
    """Though they share a model and a method, and those held out of training take none: 2 epochs of so many batches."""
    cases = [{"name": name, "partition_options": {"samples": n}} for name, n in (("few", 4), ("many", 16))]
    changes = {"partition": "dirichlet_pfl_research", "clients": 6, "new_clients": 3, "batch_size": 4, "epochs": 2}
    path = grid(methods=["fedavg"], protocol="paper", cases=cases, validation_share=0.0, **changes)
    done = bench_here("run", "--grid", path, "--out", "run", "--device", "cpu", "--dry-run")
    assert done.stdout.count("6 rounds of 3 of 3 clients") == 2
    for name, batches in (("few", 1), ("many", 4)):
        [line] = [text for text in done.stdout.splitlines() if text.startswith(f"blobs {name} alpha=1: 1 cells")]
        assert f", {6 * 3 * 2 * batches:.2g} steps of clients, " in line
