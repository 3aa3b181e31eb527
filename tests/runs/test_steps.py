"""The line that says what a longer command does: in a terminal, after two seconds, and nowhere else."""

import os
import pty
import subprocess
import sys

import pytest

from bench.runs.progress import QUIET_SECONDS
from tests.conftest import ROOT

WORK = """
import time
from bench.runs.progress import steps
with steps("bench report") as step:
    step("reading the cells")
    time.sleep({first})
    step("section 3 of 13: accuracy [draft]")
    time.sleep({second})
print("done")
"""


def in_a_terminal(code: str) -> str:
    """What a Python program writes to the terminal that it runs in."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            said += (piece := os.read(ours, 4096))
        except OSError:  # Linux: everybody else has closed it
            break
        if not piece:
            break
    os.close(ours)
    assert process.wait() == 0
    return said.decode()


@pytest.mark.long
def test_a_terminal_shows_what_is_done_now_after_two_seconds() -> None:
    said = in_a_terminal(WORK.format(first=0.0, second=QUIET_SECONDS + 1.5))
    assert "bench report: section 3 of 13: accuracy [draft]" in said
    assert "reading the cells" not in said  # that was over before
    assert said.rstrip().endswith("done")


def test_what_is_short_says_nothing() -> None:
    assert in_a_terminal(WORK.format(first=0.0, second=0.0)).strip() == "done"


@pytest.mark.long
def test_a_pipe_gets_nothing() -> None:
    code = WORK.format(first=0.0, second=QUIET_SECONDS + 0.5)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
