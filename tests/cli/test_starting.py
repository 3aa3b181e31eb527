"""The first seconds of a command, in a new interpreter."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.warm import PATIENCE, Start

NEEDED = {"array", "bench", "json", "shlex", "socket"}
"""What the command line imports beyond typer before it knows the command; anything more makes `bench --help` slower."""


def test_the_command_line_imports_little_before_it_knows_the_command() -> None:
    code = "import sys, typer; before = set(sys.modules); import bench.cli.app; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert {name for name in names if not name.startswith("_")} <= NEEDED, "import it in the functions that use it"


def test_it_speaks_before_torch_is_there_and_ctrl_c_ends_it_at_once(
    fresh: Start, grid: Callable[..., Path], tmp_path: Path
) -> None:
    """To the whole group, as a terminal sends it; no traceback, no run folder, and nobody is left."""
    began = time.monotonic()
    with fresh(
        ["run", "--grid", str(grid(methods=["fedavg"])), "--out", "run", "--device", "cpu"], tmp_path
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"bench run: {tmp_path / 'small.yaml'} is being read\n"
        spoke = time.monotonic() - began
        asked = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=PATIENCE)
        answered = time.monotonic() - asked
        said = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
    assert answered < 1, (spoke, answered)  # measured: 0.01 s


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from bench.cli import main
sys.argv = ["bench", *{command!r}]
main()
"""


@pytest.mark.parametrize(
    ("module", "command", "status", "said"),
    [
        ("typer", ["results", "run"], 130, "stopped\n"),
        ("bench.cli.verify", ["report", "run"], 130, "stopped\n"),
        ("bench.results.results", ["results", "run"], 130, "stopped\n"),
        ("bench.config.grid", ["run", "--grid", "mine.yaml"], -signal.SIGINT, "bench run: mine.yaml is being read\n"),
    ],
)
def test_ctrl_c_during_any_import_of_a_command_ends_it_in_one_line(
    module: str, command: list[str], status: int, said: str
) -> None:
    code = INTERRUPTED.format(module=module, command=command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


DROPPED = """
            owner = Finder()
            watch = weakref.ref(owner, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del owner
            for _ in range(50):
                time.sleep(0.1)
"""


def test_ctrl_c_that_python_drops_in_a_callback_is_raised_again() -> None:
    code = INTERRUPTED.format(module="bench.results.results", command=["results", "run"])
    code = "import time, weakref\n" + code.replace("            os.kill(os.getpid(), signal.SIGINT)\n", DROPPED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_a_table_in_a_closed_pipe_ends_in_silence() -> None:
    """As in `bench show FILE --table | head -2`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "bench.cli", "show", "quickstart", "--table"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_command_in_the_background_ignores_ctrl_c_as_its_shell_says() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += INTERRUPTED.format(module="bench.config.grid", command=["run", "--grid", "no-such.yaml"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "no-such.yaml" in done.stderr
