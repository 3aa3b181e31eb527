"""What is said while cells run, and the line of a longer command: in a terminal, nowhere else."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from bench.runs.progress import Event, PlainReporter, Reporter
from bench.store.store import CellState
from tests.conftest import ROOT


@pytest.mark.parametrize(("state", "finished"), [("done", 1), ("failed", 1), ("diverged", 1), ("interrupted", 0)])
def test_a_cell_that_is_stopped_is_not_counted_as_finished(
    state: CellState, finished: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with PlainReporter({"a": "first", "b": "second"}, {"a": 30, "b": 30}) as report:
        report.event(Event("a", "running", 3, 30))
        report.event(Event("a", state, 4, 30))
    said = capsys.readouterr().err
    assert f"[{finished}/2] first: {state}, round 4/30" in said
    assert state != "interrupted" or "left" not in said.splitlines()[-1]
    assert len(report.finished) == finished


def test_a_cell_that_goes_on_elsewhere_is_counted_once() -> None:
    """Its worker was lost, and another one ends it."""
    report = Reporter({"a": "first"}, {"a": 30})
    for state in ("running", "interrupted", "running", "done", "done"):
        report.event(Event("a", state, 4, 30))  # type: ignore[arg-type]
        assert len(report.finished) == (state == "done")


WORK = """
import time
from bench.runs.progress import steps
with steps("bench report") as step:
    step("section 3 of 13: accuracy [draft]")
    time.sleep(0.5)
print("done")
"""


def test_a_terminal_shows_what_is_done_now() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # Linux: everybody else has closed it
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    assert process.wait() == 0
    assert "bench report: section 3 of 13: accuracy [draft]" in said.decode()
    assert said.decode().rstrip().endswith("done")


def test_a_pipe_gets_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
