"""A user's code decides no command's exit status: neither `sys.exit(0)` nor an interrupt that it raises itself."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench as harness
from bench.errors import UserError
from bench.federation.scores import FurtherScores
from bench.method import METHODS
from bench.plugin import METRICS
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from methods.fedavg import FedAvg
from tests.runs.conftest import Bench, Cell, Grid

ENDS = {
    "run --grid quickstart": "sys.exit(0)",
    "evaluate run": "raise SystemExit",
    "show quickstart": "import argparse\nargparse.ArgumentParser().parse_args(['-h'])",
}
"""How a plug-in of these commands ends Python; all commands load plug-ins by one function."""


@pytest.mark.parametrize("command", ENDS)
def test_a_plug_in_that_ends_python_is_refused(command: str, bench_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(f"import sys\n{ENDS[command]}\n", encoding="utf-8")
    said = bench_here(*command.split(), "--plugin", "ends.py", code=2).stderr
    assert "ends.py, line " in said
    assert "ends the command (SystemExit)" in said


def leave(*_: Any) -> Any:
    sys.exit(0)


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def leaver(monkeypatch: pytest.MonkeyPatch) -> type[FedAvg]:
    """A method whose functions a test replaces."""

    class Leaver(FedAvg):
        pass

    monkeypatch.setitem(METHODS._items, "leaver", Leaver)
    return Leaver


@pytest.fixture
def ignored() -> Iterator[None]:
    """Signals as in a worker, which ignores them."""
    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(sign, signal.SIG_IGN) for sign in signals]
    yield
    for sign, handler in zip(signals, before, strict=True):
        signal.signal(sign, handler)


@pytest.mark.usefixtures("ignored")
@pytest.mark.parametrize(
    ("act", "reason"), [(leave, "`sys.exit(0)` ends the command"), (interrupt, "(KeyboardInterrupt)")]
)
def test_a_method_that_ends_python_or_raises_an_interrupt_that_nobody_sent_fails(
    cell: Cell, leaver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[..., Any], reason: str
) -> None:
    monkeypatch.setattr(leaver, "client_round", act)
    status = run_cell(cell(method="leaver"), tmp_path / "cell", Options(device="cpu"))
    assert status.state == "failed"
    assert reason in status.reason


def test_ctrl_c_is_no_error(cell: Cell, leaver: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(leaver, "client_round", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests' commands leave another one
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell(method="leaver"), tmp_path / "cell", Options(device="cpu"))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_method_whose_constructor_ends_python(
    bench_here: Bench, grid: Grid, leaver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command and its function refuse alike; a method under test has a finding."""
    monkeypatch.setattr(leaver, "__init__", leave)
    file = grid(methods=["leaver"])
    assert "ends the command" in bench_here("run", "--grid", file, "--out", "run", "--no-tracking", code=2).stderr
    with pytest.raises(UserError, match="ends the command"):
        harness.run(file, "run", tracking=False)
    assert "ends the command" in bench_here("check-method", "leaver", code=1).stdout


def test_a_score_that_ends_python_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS._items, "leaves", lambda labels, logits: sys.exit(0))
    scores = FurtherScores(("leaves",))
    value = scores.values(np.array([0, 1]), np.zeros((2, 2)), "samples")["leaves"]
    assert np.isnan(value)
    assert "ends the command" in scores.problems["leaves"]
