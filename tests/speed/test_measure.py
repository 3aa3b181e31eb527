"""The figures of `bench speed`, by hand; and the command itself."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.speed import speed
from bench.errors import UserError
from bench.speed.contestants import Turn, middle, undisturbed
from bench.speed.measure import operations, summary
from bench.speed.workloads import WORKLOADS
from bench.store.provenance import stolen_seconds

PLAIN = [
    Turn(steps=10, images=100, training=1.0, other=0.0, evaluation=1.0, memory=7),
    Turn(steps=10, images=100, training=4.0, other=0.0, evaluation=4.0, memory=9),
    Turn(steps=10, images=100, training=2.0, other=0.0, evaluation=2.0, memory=8),
]


def test_figures_by_hand() -> None:
    """Ours trains twice as fast in every repeat, whatever the machine did; 0.1 s of a round are neither."""
    ours = [replace(r, training=r.training / 2, other=0.1 * r.training / 2, evaluation=r.training) for r in PLAIN]
    found = summary(ours, PLAIN, seconds_at_peak=1e-3)
    assert found.ms_training == pytest.approx(1e3 * 1.0 / 10)
    assert found.ms == pytest.approx(1e3 * (1.0 + 0.1 + 2.0) / 10)
    assert found.ms_sparse == pytest.approx(1e3 * (1.0 + 0.1 + 0.2) / 10)
    assert found.times_training == pytest.approx(2.0)
    assert found.times == pytest.approx(4.0 / 3.1)
    assert found.times_sparse == pytest.approx(2.2 / 1.3)
    assert found.outside == pytest.approx(0.3 / 1.3)
    assert found.images == pytest.approx(100.0)
    assert found.ceiling == pytest.approx(0.1)
    assert found.memory == 9
    assert summary([replace(PLAIN[0], stolen=0.02), PLAIN[1]], PLAIN[:2], 1e-3).stolen == 0.02


def test_the_middle_round_stands_for_a_turn() -> None:
    assert middle(PLAIN) == PLAIN[2]
    assert middle([PLAIN[1]]) == PLAIN[1]


def test_a_disturbed_turn_is_taken_again() -> None:
    """Until one is calm, or else the calmest of so many; whatever it measured."""

    def taken(*stolen: float) -> tuple[Turn, int]:
        turns = iter([replace(PLAIN[0], stolen=share, memory=i) for i, share in enumerate(stolen)])
        return undisturbed(lambda: next(turns), attempts=3), len(stolen) - len(list(turns))

    assert taken(0.04, 0.0) == (replace(PLAIN[0], stolen=0.04, memory=0), 1)
    assert taken(0.3, 0.01, 0.0) == (replace(PLAIN[0], stolen=0.01, memory=1), 2)
    assert taken(0.3, 0.1, 0.2, 0.0) == (replace(PLAIN[0], stolen=0.1, memory=1), 3)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_stolen_seconds_are_those_of_this_process_s_cores(tmp_path: Path) -> None:
    """Of a table by hand, in which the first line counts all cores together and the last core is nobody's."""
    own, table = sorted(os.sched_getaffinity(0)), tmp_path / "stat"
    rows = [f"cpu{i} 1 2 3 4 5 6 7 {100 * (k + 1)} 9 10" for k, i in enumerate([*own, max(own) + 1])]
    table.write_text("\n".join(["cpu  1 2 3 4 5 6 7 99999 9 10", *rows, "intr 1 2 3", "ctxt 4", ""]))
    n = len(own)
    assert stolen_seconds(table) == 100 * n * (n + 1) / 2 / os.sysconf("SC_CLK_TCK")
    assert stolen_seconds(tmp_path / "none") == 0.0
    assert stolen_seconds() >= 0.0


def test_operations_of_a_dense_model_by_hand() -> None:
    """64 -> 200 -> 10: forward, gradients of the weights, and of the hidden layer only; two for a multiply-add."""
    assert operations(WORKLOADS["digits"]) == 2 * (2 * (64 * 200 + 200 * 10) + 200 * 10)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    command = [sys.executable, "-m", "bench.cli", "speed", "--workload", "digits", "--quick", "--json", str(file)]
    wide = {**os.environ, "COLUMNS": "200"}  # the table folds its names where the tests have a narrow terminal
    done = subprocess.run(command, env=wide, capture_output=True, text=True, check=True)
    assert "plain, threads" in done.stdout
    found = json.loads(file.read_text())
    digits = found["results"]["digits"]
    assert list(digits)[:5] == ["plain", "plain, threads", "sequential", "cohort", "cell"]
    assert min(digits["plain"]["times"], digits["plain, threads"]["times"]) <= 1.0
    assert all(0 <= figures["stolen"] <= 1 for figures in digits.values())
    assert all(figures["memory"] > 1e6 and figures["images"] > 0 for figures in digits.values())
    assert found["ceiling_gflops"].keys() == {one["precision"] for one in found["contestants"]}
    assert all(peak > 0 for peak in found["ceiling_gflops"].values())


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(UserError, match=r"'vgg'.*mnist_cnn"):
        speed(workload=["vgg"])
