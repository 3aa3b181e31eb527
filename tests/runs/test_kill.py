"""Runs that are killed, interrupted or shared."""

import os
import signal
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
from tests.runs.helpers import CHILDREN, RESULTS, cells, states, wait_for
from tests.warm import PATIENCE, Start

pytestmark = pytest.mark.faults


OPTIONS = Options(device="cpu", executor="sequential", checkpoint_seconds=0)


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
    settings, options = cell(rounds=3), OPTIONS.model_copy(update={"keep": keep})
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
