"""A dry run says what arithmetic on settings, data and sizes of networks says, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.runs.forecast.estimate import Rates
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


def test_a_line_says_what_a_task_is(bench_here: Bench) -> None:
    """Of 50,000 samples each of 100 clients has 500 under the paper's protocol."""
    said = "1 cells, 500 rounds of 100 of 100 clients with about 500 samples each, about "
    only = ("--only", "method=fedavg,seed=0")
    done = bench_here("run", "--grid", "table1", "--out", "none", "--device", "cpu", "--dry-run", *only)
    for alpha in ("1", "0.5", "0.1"):
        assert f"\ncifar10 alpha={alpha}: {said}" in done.stdout


def test_cells_that_are_not_timed_are_scaled_as_the_timed_ones(
    bench_here: Bench, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two kinds the first one begins in time; both had the same estimate before."""
    path = grid(methods=["fedavg", "local"], rounds=2)
    monkeypatch.setattr("bench.cli.dry_run.MEASURING", 0.05)
    common = ("run", "--grid", path, "--out", "run", "--device", "cpu", "--dry-run", "--verbose")
    plain, timed = (bench_here(*common, *more).stdout for more in ((), ("--measure",)))
    assert "by 0 kinds of cells that were timed here" in plain
    assert "by 1 kinds of cells that were timed here" in timed


def test_hours_of_steps_that_were_not_recorded_say_so(
    bench_here: Bench, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the line of the cells and in that of the total."""
    path = grid(methods=["fedavg"], rounds=2)
    for recorded, times in ((True, 0), (False, 2)):
        rates = Rates(step=1.0, client=0.0, evaluated=0.0, sent=8.0, recorded=recorded)
        monkeypatch.setattr("bench.runs.forecast.timing.measured_rates", lambda work, device, rates=rates: rates)
        done = bench_here("run", "--grid", path, "--out", "run", "--device", "cpu", "--dry-run", "--measure")
        assert done.stdout.count("steps that were not recorded") == times


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
