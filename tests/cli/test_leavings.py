"""What is left where a command is stopped or cannot work, and that no such command ends with a traceback."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.runs import store
from tests.runs.helpers import cells
from tests.warm import Start

Bench = Callable[..., "subprocess.CompletedProcess[str]"]
Grid = Callable[..., Path]

SMALL = ("--device", "cpu", "--jobs", 1, "--quiet")


@pytest.fixture
def two_grids(bench_here: Bench, grid: Grid, tmp_path: Path) -> Path:
    """A run folder with two cells, one of earlier settings."""
    run = tmp_path / "run"
    for lr in (0.1, 0.2):
        bench_here("run", "--grid", grid(methods=["fedavg"], rounds=1, lr=lr), "--out", run, *SMALL)
    return run


def test_a_removal_that_is_stopped_is_finished_by_the_next(
    start: Start, bench_here: Bench, two_grids: Path, tmp_path: Path
) -> None:
    """By Ctrl-C in the middle of a folder of many files."""
    (cell,) = cells(two_grids).values()
    (other,) = {file.parent for file in two_grids.glob("*/settings.json")} - {cell.folder}
    (other / "checkpoint").mkdir(exist_ok=True)
    for number in range(3000):
        (other / "checkpoint" / str(number)).touch()
    with start("clean", two_grids, "--yes") as process:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and len(list(two_grids.glob(f"{other.name}*/checkpoint/*"))) == 3000:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert "Traceback" not in said
    assert not other.exists()  # no folder of that name without its settings
    (two_grids / "0123456789abcdef").mkdir()  # what earlier versions left
    (two_grids / "0123456789abcdef" / "lock").touch()
    assert "what is left of a removal that was stopped" in bench_here("clean", two_grids).stdout
    assert "belong to other settings" not in bench_here("status", two_grids, "--all").stdout
    bench_here("clean", two_grids, "--yes")
    assert [folder for folder in two_grids.iterdir() if folder.is_dir()] == [cell.folder]
    assert "nothing to remove" in bench_here("clean", two_grids).stdout


def test_a_cell_that_somebody_works_on_is_not_removed(bench_here: Bench, two_grids: Path) -> None:
    (cell,) = cells(two_grids).values()
    (other,) = {file.parent for file in two_grids.glob("*/settings.json")} - {cell.folder}
    with store.locked(other):
        assert "is held by process" in bench_here("clean", two_grids, "--yes", code=2).stderr
    assert (other / "settings.json").exists()


COMMANDS = [["run", "--grid", "quickstart"], ["status", "run"], ["grids"], ["sweep", "--study", "x"], ["verify", "run"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_deleted_working_folder_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    from bench.cli import main

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    shutil.rmtree(gone)
    monkeypatch.setattr(sys, "argv", ["bench", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said == "bench: the working folder was deleted: go to one that is there (cd) and give the command again\n"
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_the_real_command_in_a_deleted_folder(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("bench")
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone} && exec {script} methods"], cwd=gone, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "the working folder was deleted" in done.stderr


@pytest.mark.long
def test_output_degrades_in_the_c_locale(grid: Grid, fresh: Start, tmp_path: Path) -> None:
    """The summary has an alpha and a plus-minus sign; the cells were done, and so the command has to succeed."""
    ascii_only = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    common = ["--device", "cpu", "--jobs", "1", "--out", "run"]
    for command in (
        ["run", "--grid", str(grid(methods=["fedavg"], rounds=1, seeds=[0, 1])), *common],
        ["results", "run"],
        ["status", "run"],
    ):
        with fresh(command, tmp_path, ascii_only) as process:
            out, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        assert out.isascii()
    assert "fedavg" in out
