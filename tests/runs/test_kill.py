"""Runs that are killed, interrupted or shared, also by two machines, simulated by two sets of Linux namespaces."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from tests.runs.conftest import Grid
from tests.runs.helpers import CHILDREN, EVERY_ROUND, RESULTS, cells, contents, states, undisturbed, wait_for
from tests.warm import PATIENCE, Start

pytestmark = pytest.mark.faults


def run_and_kill(settings: Settings, folder: Path, options: Options, change: int, changes: Connection) -> None:
    """Run a cell, and kill this process before the given change of the file system after the last round."""
    ended = count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal ended, count
        flags = arguments[2] if event == "open" and not isinstance(arguments[0], int) else 0
        if flags & os.O_APPEND and str(arguments[0]) == str(folder / "clients.csv"):
            # Until the last checkpoint is written, whose changes are not counted, as they come at any time.
            while ended + 1 == settings.rounds > 1 and not (folder / "checkpoint" / f"{ended:08d}").is_dir():
                time.sleep(0.01)
            ended += 1  # each evaluation writes a row
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if ended == settings.rounds and (writes or event in ("os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree")):
            count += 1
            if count == change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run_cell(settings, folder, options)
    changes.send(count)


@pytest.mark.long
@pytest.mark.parametrize("keep", ["none", pytest.param("server", marks=pytest.mark.slow), "all"])
def test_a_kill_after_the_last_round_repeats_no_other(cell: Callable[..., Settings], tmp_path: Path, keep: str) -> None:
    """A kill before any change of a file after the last round: no earlier round is lost, and only the requested
    files are kept."""
    settings, options = cell(rounds=3), EVERY_ROUND.model_copy(update={"keep": keep})
    receiver, sender = CHILDREN.Pipe(duplex=False)
    whole = CHILDREN.Process(target=run_and_kill, args=(settings, tmp_path / "0", options, 0, sender))
    whole.start()
    changes = receiver.recv()
    whole.join()
    assert changes > 5
    for change in range(1, changes + 1):
        folder = tmp_path / str(change)
        child = CHILDREN.Process(target=run_and_kill, args=(settings, folder, options, change, sender))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert run_cell(settings, folder, options).state == "done"
        assert (folder / "log.txt").read_text().count("starting with round 1") == 1
        for name in RESULTS:
            assert (folder / name).read_bytes() == (tmp_path / "0" / name).read_bytes()
        kept = [path.name for path in folder.glob("checkpoint/*")]
        assert kept == [path.name for path in (tmp_path / "0").glob("checkpoint/*")]
        assert len(kept) == (keep != "none")


@pytest.mark.long
@pytest.mark.parametrize(
    ("sign", "everybody"),
    [(signal.SIGINT, True), (signal.SIGTERM, False), pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow)],
)
def test_a_stopped_run_leaves_a_checkpoint(
    start: Start, grid: Grid, tmp_path: Path, sign: signal.Signals, everybody: bool
) -> None:
    """A terminal sends the signal to the workers, too, as do some batch systems."""
    file, run = grid(methods=[{"name": "odd_slow", "nap": 0.1}], rounds=400), tmp_path / "run"
    with start("run", "--grid", file, "--out", run, "--device", "cpu") as process:  # no checkpoint is due yet
        wait_for(process, run, 3)
        (os.killpg if everybody else os.kill)(process.pid, sign)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"The same command goes on: bench run --grid {file}" in err
    assert "Traceback" not in err
    assert "stopping: cells end their round and write a checkpoint; Ctrl-C again does not wait" in err
    assert "[0/1] odd_slow blobs alpha=1 seed=0: interrupted, round " in err
    status, folder = cells(run)["odd_slow"].status, cells(run)["odd_slow"].folder
    assert (status.state, status.reason) == ("interrupted", "stopped by the user")
    assert (folder / "checkpoint" / f"{status.rounds:08d}").is_dir()


@pytest.mark.long
def test_two_commands_share_the_cells(start: Start, grid: Grid, tmp_path: Path) -> None:
    methods = [{"name": "odd_slow", "nap": nap} for nap in (0.1, 0.11, 0.12)]
    file, run = grid(methods=methods, rounds=10), tmp_path / "run"
    arguments = ("run", "--grid", file, "--out", run, "--device", "cpu", "--jobs", 1)
    with start(*arguments) as first, start(*arguments) as second:
        errors = [process.communicate(timeout=PATIENCE)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert list(states(run).values()) == ["done"] * 3
    logs = [(cell.folder / "log.txt").read_text() for cell in load_run(run).cells]
    assert [log.count("starting with round 1") for log in logs] == [1, 1, 1]


# -- two machines that share a folder ----------------------------------------------------------------------------------


ARRIVE = 'hostname "$0" && mkdir -p "$2" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
"""What a machine does first: it takes a host name and mounts the shared folder at its own path."""


def on_machine(name: str, shared: Path, mount: Path, *command: object) -> list[str]:
    """A command on a machine with its own host name, process ids and mounts; if the command is killed, all its
    processes end."""
    apart = ["unshare", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*apart, "sh", "-c", ARRIVE, name, str(shared), str(mount), *map(str, command)]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder that both machines mount; the test is skipped if the system does not allow namespaces."""
    folder = tmp_path / "shared"
    folder.mkdir()
    probe = on_machine("probe", folder, tmp_path / "probe", "true")
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("needs util-linux's unshare and the right to make namespaces")
    return folder


@pytest.mark.long
@pytest.mark.usefixtures("odd_methods")
def test_two_machines_share_a_folder(grid: Grid, environment: dict[str, str], shared: Path, tmp_path: Path) -> None:
    """The second machine takes the free cell, says who holds the other one, and takes that when the first machine
    dies."""
    disturbed = tmp_path / "disturbed"
    file = grid(methods=[{"name": "odd_slow", "nap": 0.2, "until": str(disturbed)}, "fedper"], rounds=20)

    def start(name: str, *more: str) -> "subprocess.Popen[str]":
        mount = tmp_path / name
        command = [sys.executable, "-m", "bench.cli", "run", "--grid", file, "--out", mount / "run", "--device", "cpu"]
        arguments = on_machine(name, shared, mount, *command, "--jobs", 1, "--checkpoint-seconds", 0.2, *more)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            arguments, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    said = []
    with start("first", "--quiet") as first:
        wait_for(first, shared / "run", 3)
        os.killpg(first.pid, signal.SIGSTOP)  # stopped, not ended: it keeps its cell, however slow the second is
        disturbed.touch()
        with start("second", "--verbose") as second:
            assert second.stderr is not None
            for line in second.stderr:
                said.append(line)
                if "held by process" in line and states(shared / "run")["fedper"] == "done":
                    first.kill()
        first.kill()  # also if the second did not wait for it
    assert second.returncode == 0, said
    assert any("odd_slow blobs alpha=1 seed=0: running, round" in line and "@first" in line for line in said), said
    here = {label: cell.folder for label, cell in cells(shared / "run").items()}
    assert states(shared / "run") == {"odd_slow": "done", "fedper": "done"}
    assert all((folder / "lock").read_text().endswith("@second") for folder in here.values())
    logs = {label: (folder / "log.txt").read_text() for label, folder in here.items()}
    assert {label: log.count("starting with round 1") for label, log in logs.items()} == {"odd_slow": 1, "fedper": 1}
    assert {label: log.count("going on after round") for label, log in logs.items()} == {"odd_slow": 1, "fedper": 0}
    assert contents(shared / "run") == undisturbed(shared / "run", tmp_path / "whole")
    assert not list(shared.rglob("*.tmp"))
