"""A dry run says what arithmetic on settings, data and sizes of networks says, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runs.conftest import Bench, Grid

GRIDS = sorted(grid.stem for grid in (ROOT / "bench" / "grids").glob("*.yaml"))


@pytest.mark.parametrize("name", [pytest.param(g, marks=[] if g == "table9" else pytest.mark.long) for g in GRIDS])
def test_a_dry_run_of_a_built_in_grid_takes_no_torch(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Nor pandas: here both cannot be imported. A server rule, wait-free clients and public samples are among them."""
    for package in ("torch", "torchvision", "pandas"):
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is asked for')\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench.cli", "run", "--grid", name, "--device", "cpu", "--dry-run"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("is asked for")) == (0, 0), done.stderr
    assert "no estimate" not in done.stdout
    assert any(" of computing, " in line and line.endswith(" sent") for line in done.stdout.splitlines())


def test_what_settings_say_is_printed_first(bench_here: Bench) -> None:
    """Of 50,000 samples each of 100 clients has 500 under the paper's protocol."""
    said = "500 rounds of 100 of 100 clients, each with about 500 samples and 250 steps whenever it trains a model"
    only = ("--only", "method=fedavg")
    done = bench_here("run", "--grid", "table1", "--out", "none", "--device", "cpu", "--dry-run", *only)
    assert done.stdout.splitlines()[1:4] == [f"cifar10 alpha={alpha}: {said}" for alpha in ("1", "0.5", "0.1")]


def test_cells_that_are_not_timed_are_scaled_as_the_timed_ones(
    bench_here: Bench, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two kinds the first one begins in time."""
    path = grid(methods=["fedavg", "local"], rounds=2)
    monkeypatch.setattr("bench.cli.dry_run.MEASURING", 0.05)
    common = ("run", "--grid", path, "--out", "run", "--device", "cpu", "--dry-run", "--verbose")
    plain, timed = (bench_here(*common, *more).stdout for more in ((), ("--measure",)))
    assert (plain.count(" (estimated), "), plain.count("measured")) == (2, 0)
    assert (timed.count(" (measured), "), timed.count(" (scaled), ")) == (1, 1)
    assert "rounds of 1 of 2 cells were timed here" in timed


@pytest.mark.parametrize(
    ("public", "said"),
    [("{name: digits, size: 5000}", "public size = 5000"), ("{name: organamnist}", "organamnist.npz is missing")],
)
def test_public_samples_that_a_run_would_refuse_are_refused(
    public: str, said: str, bench_here: Bench, grid: Grid
) -> None:
    """Samples that the clients' own data set does not have, and a file that is not here."""
    path = grid(methods=["fedmd"], datasets=[{"name": "digits"}], model="mlp")
    done = bench_here(
        "run", "--grid", path, "--out", "run", "--device", "cpu", "--dry-run", "--set", f"public={public}"
    )
    assert said in done.stdout
