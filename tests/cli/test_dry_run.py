"""A dry run says at once what settings say, shows more as it knows more, and ends in a minute."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.conftest import Bench, Grid
from tests.warm import PATIENCE


def test_what_settings_say_is_said_without_torch(tmp_path: Path, environment: dict[str, str]) -> None:
    """Of 50,000 samples each of 100 clients has 500 under the paper's protocol."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is asked for')\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench.cli", "run", "--grid", "table1", "--device", "cpu", "--dry-run"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "torch is asked for" in done.stderr
    said = "500 rounds of 100 of 100 clients, each with about 500 samples and 250 steps whenever it trains a model"
    assert done.stdout.splitlines() == [
        "126 cells of 14 methods on cifar10: 63000 rounds",
        *(f"cifar10 alpha={alpha}: {said}" for alpha in ("1", "0.5", "0.1")),
    ]


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


def test_what_was_not_counted_in_time_is_said(bench_here: Bench, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.runs.forecast.limit.LIMIT", 0.0)
    common = ("run", "--grid", grid(methods=["fedavg", "local"], seeds=[0, 1]), "--out", "run", "--device", "cpu")
    lines = bench_here(*common, "--dry-run").stdout.splitlines()
    assert lines[0] == "4 cells of 2 methods on npz: 24 rounds"
    assert lines[2] == "blobs alpha=1: 4 cells of 2 methods, 0 done, no estimate"
    assert lines[3] == "missing, for 4 cells: not counted within 0 s: fedavg, local"
    assert lines[-1].endswith(": no estimate, see `missing` above")


@pytest.mark.long
def test_a_terminal_is_written_again_in_place(tmp_path: Path, environment: dict[str, str], grid: Grid) -> None:
    """What is shown meanwhile is taken away, and the last lines are those that a file gets. No pandas is loaded, which
    would be 65 MB of its peak."""
    (tmp_path / "pandas.py").write_text("raise ImportError('pandas is asked for')\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    environment = {**environment, "TERM": "xterm", "COLUMNS": "150", "PYTHONPATH": path}
    here, there = pty.openpty()
    command = [sys.executable, "-m", "bench.cli", "run", "--grid", grid(methods=["fedavg", "ditto"]), "--dry-run"]
    with subprocess.Popen(
        [*map(str, command), "--device", "cpu"], cwd=tmp_path, env=environment, stdout=there, stderr=subprocess.DEVNULL
    ) as process:
        os.close(there)
        said = b""
        try:
            while part := os.read(here, 2**16):
                said += part
        except OSError:  # Linux's end of a terminal
            pass
        assert process.wait(PATIENCE) == 0
    os.close(here)
    text = said.decode()
    assert "counting fedavg (1 of 2 kinds of cells)" in text
    assert "\x1b[2K" in text  # a line is cleared
    last = text.rpartition("\x1b[2K")[2]
    assert "counting" not in last
    assert "blobs alpha=1: 2 cells of 2 methods, 0 done, about" in last
