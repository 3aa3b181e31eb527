"""`python -m tools.commands`: real commands are timed with all their processes, and ended at the limit."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.errors import UserError
from tests.conftest import ROOT
from tools.commands import (
    COMMANDS,
    HERE,
    CommandCost,
    TimedCommand,
    cost_of,
    figures_text,
    installation,
    main,
    measure_commands,
)

BENCH = Path(sys.executable).with_name("bench")
BUSY = "import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
FAR = 600.0
"""Seconds that nothing here takes."""
TICK = 0.05
"""Seconds by which a system's clocks of a process may differ."""


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def memory_of_this_process() -> int:
    """Its peak, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def test_all_processes_of_a_command_count(tmp_path: Path) -> None:
    """Itself, a child that it waits for, and on Linux one that it leaves behind; the largest one's memory."""
    child = BUSY.format(seconds=0.3)
    (tmp_path / "large.py").write_text(f"held = bytearray(80_000_000)\n{child}")
    (tmp_path / "left.py").write_text(child)
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-I', 'large.py'])\n"
    cost = cost_of(python(f"{code}subprocess.Popen([sys.executable, '-I', 'left.py'])\n{child}"), tmp_path, FAR)
    assert (cost.status, cost.over) == (0, False)
    assert cost.cpu >= (0.9 if sys.platform == "linux" else 0.6)
    assert cost.wall >= 0.6  # the one that is left behind is not waited for on the clock
    assert cost.memory > 80_000_000


def test_a_sleeping_command_costs_time_and_nothing_else(tmp_path: Path) -> None:
    cost = cost_of(python("import time; time.sleep(0.5)"), tmp_path, FAR)
    assert cost.wall >= 0.5
    assert cost.cpu <= cost.wall - 0.5 + TICK
    assert cost.memory < memory_of_this_process() / 4  # it has imported much, and waits for the command


@pytest.mark.long
def test_a_command_is_ended_at_the_limit_with_what_it_started(tmp_path: Path) -> None:
    """And is not repeated."""
    code = "import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
    log = "open('pids', 'a').write(f'{child.pid}\\n')\ntime.sleep(600)\n"
    command = TimedCommand("too long", ("-c", code + log), python=True)
    begun = time.monotonic()
    cost = measure_commands([command], {"a": BENCH}, 10.0, tmp_path, lambda text: None)["too long"]["a"]
    assert cost.over
    assert 10.0 <= cost.wall <= time.monotonic() - begun < FAR
    [pid] = (tmp_path / "a" / "pids").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


@pytest.mark.long
def test_commands_run_as_often_as_they_should(tmp_path: Path) -> None:
    """Of two installations, which here are one, in turns; a refusal ends with 2, as it should."""
    code = "open('../log', 'a').write(__import__('os').getcwd()[-1])"
    commands = [
        TimedCommand("misspelt", ("run", "--grid", "misspelt.yaml"), status=2, repeats=1),
        TimedCommand("twice", ("-c", code), repeats=2, python=True),
    ]
    said: list[str] = []
    costs = measure_commands(commands, {"a": BENCH, "b": BENCH}, FAR, tmp_path, said.append)
    assert list(costs) == ["misspelt", "twice"]
    assert all(list(row) == ["a", "b"] for row in costs.values())
    assert {cost.status for cost in costs["misspelt"].values()} == {2}
    assert (tmp_path / "log").read_text() == "abab"
    assert said == ["command 1 of 2: misspelt", "command 2 of 2: twice"]


@pytest.mark.long
def test_the_run_of_least_cpu_seconds_counts(tmp_path: Path) -> None:
    code = "import os\nif os.path.exists('known'):\n    sys = __import__('sys'); sys.exit(0)\nopen('known', 'w')\n"
    slow_first = TimedCommand("x", ("-c", code + BUSY.format(seconds=1.0)), repeats=2, python=True)
    cost = measure_commands([slow_first], {"a": BENCH}, FAR, tmp_path, lambda text: None)["x"]["a"]
    assert cost.cpu < 1.0


def test_how_figures_are_written() -> None:
    command = TimedCommand("x", (), status=2)
    done = CommandCost(cpu=0.456, wall=1.2345, memory=123_456_789, status=2, over=False)
    assert figures_text(done, command) == ("0.46", "1.23", "123")
    ended = CommandCost(cpu=100.0, wall=120.004, memory=5_000_000_000, status=-9, over=True)
    assert figures_text(ended, command) == ("> 100.00", "> 120.00", "5000")
    assert figures_text(CommandCost(0.1, 0.1, 1, 1, over=False), command) == ("ended with 1", "–", "–")


def test_what_commands_read_is_there_and_no_two_are_called_the_same() -> None:
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    listing = " ".join(word for command in COMMANDS for word in command.arguments)
    assert all(word in listing for word in ("table1", "table4", "many.yaml", "methods", "league report"))


@pytest.mark.long
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    """With a limit that most commands are over, as all of them take minutes."""
    file = tmp_path / "costs.json"
    words = ["-m", "tools.commands", "--limit", "0.3", "--quick", "--json", str(file), "--beside", str(BENCH)]
    wide = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], env=wide, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert all(command.name in done.stdout for command in COMMANDS)
    assert "> 0.3" in done.stdout
    found = json.loads(file.read_text())
    assert list(found["commands"]) == [command.name for command in COMMANDS]
    assert found["commands"]["the league's page"][HERE]["over"]
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_installation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no program"):
        main(["--beside", str(tmp_path / "bench")])
    alone = tmp_path / "bench"
    alone.write_text("#!/bin/sh\n")
    alone.chmod(0o755)
    with pytest.raises(UserError, match="python is no program"):
        installation(alone)
