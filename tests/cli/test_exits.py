"""A user's code decides no command's exit status: neither `sys.exit(0)` nor an interrupt that it raises itself."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

import bench as harness
from bench.cli.app import app
from bench.errors import UserError
from bench.federation.scores import FurtherScores
from bench.method import METHODS
from bench.plugin import METRICS
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from methods.fedavg import FedAvg
from tests.runs.conftest import Bench

GIVEN = {
    "run": "run", "cell": "cell", "job": "job", "grid": "quickstart", "runs": "run", "source": "t.csv", "data": "t.csv",
}  # fmt: skip
"""Arguments of the commands."""
GIVEN_BY_OPTION = {"grid": "quickstart", "study": "table6", "site": "0", "method": "fedavg", "out": "new"}
ENDS = ["import sys\nsys.exit(0)", "raise SystemExit", "import argparse\nargparse.ArgumentParser().parse_args(['-h'])"]


def commands_with_plugins() -> Iterator[tuple[list[str], list[str]]]:
    """The words of each command that takes a plug-in, and values for what else it needs."""
    todo: list[tuple[list[str], Any]] = [([], typer.main.get_command(app))]
    while todo:
        words, command = todo.pop()
        if hasattr(command, "commands"):
            todo += [([*words, name], part) for name, part in command.commands.items()]
        elif any(parameter.name == "plugin" for parameter in command.params):
            needed: list[str] = []
            for parameter in command.params:
                if parameter.param_type_name == "argument" and parameter.name in GIVEN:
                    needed.append(GIVEN[parameter.name])
                elif parameter.required or parameter.name in ("grid", "study", "out"):
                    needed += [parameter.opts[0], GIVEN_BY_OPTION.get(parameter.name, "new")]
            yield words, needed


COMMANDS = {" ".join(words): needed for words, needed in commands_with_plugins()}


def test_the_commands_are_found() -> None:
    assert {"run", "sweep", "evaluate", "report", "league submit", "sites join"} <= set(COMMANDS)
    assert len(COMMANDS) >= 16


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"verify"}))
def test_a_plug_in_that_ends_python_is_refused(command: str, bench_here: Bench, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("\n" + ENDS[len(command) % len(ENDS)], encoding="utf-8")
    done = bench_here(*command.split(), *COMMANDS[command], "--plugin", "ends.py", code=2)
    assert "ends.py, line " in done.stderr
    assert "ends the command (SystemExit)" in done.stderr


@pytest.mark.parametrize("end", ENDS)
def test_python_says_the_same(end: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(end, encoding="utf-8")
    with pytest.raises(UserError, match=r"ends.py, line .* ends the command"):
        harness.load_file(tmp_path / "ends.py")
    assert "plugin_ends" not in sys.modules


@pytest.fixture
def leaver(monkeypatch: pytest.MonkeyPatch) -> type[FedAvg]:
    """A method that ends Python in a round."""

    class Leaver(FedAvg):
        def client_round(self, *_: Any) -> Any:
            sys.exit(0)

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


def test_a_method_that_ends_python_fails(cell: Callable[..., Settings], leaver: Any, tmp_path: Path) -> None:
    status = run_cell(cell(method="leaver"), tmp_path / "cell", Options(device="cpu"))
    assert status.state == "failed"
    assert "`sys.exit(0)` ends the command" in status.reason


@pytest.mark.usefixtures("ignored")
def test_an_interrupt_that_nobody_sent_is_an_error(
    cell: Callable[..., Settings], leaver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaver, "client_round", interrupt)
    status = run_cell(cell(method="leaver"), tmp_path / "cell", Options(device="cpu"))
    assert status.state == "failed"
    assert "(KeyboardInterrupt)" in status.reason


def test_ctrl_c_is_no_error(cell: Callable[..., Settings], leaver: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(leaver, "client_round", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests' commands leave another one
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell(method="leaver"), tmp_path / "cell", Options(device="cpu"))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_method_whose_constructor_ends_python(
    bench_here: Bench, grid: Callable[..., Path], leaver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command and its function refuse alike; a method under test has a finding."""
    monkeypatch.setattr(leaver, "__init__", lambda *_: sys.exit(0))
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
