"""What is left where a command is stopped or cannot work, and that no such command ends with a traceback."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.store import store
from tests.cli.conftest import WriteStudy
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import cells
from tests.warm import PATIENCE, Start

SMALL = ("--device", "cpu", "--jobs", 1, "--quiet")


@pytest.fixture
def two_grids(bench_here: Bench, grid: Grid, tmp_path: Path) -> Path:
    """A run folder with two cells, one of earlier settings."""
    run = tmp_path / "run"
    for lr in (0.1, 0.2):
        bench_here("run", "--grid", grid(methods=["fedavg"], rounds=1, lr=lr), "--out", run, *SMALL)
    return run


def files_left(run: Path, cell: str) -> int:
    """Files of a cell's checkpoint, while somebody removes the folder, which has another name meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return sum(len(os.listdir(folder / "checkpoint")) for folder in run.glob(f"{cell}*"))
    return 0


@pytest.mark.long
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
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and files_left(two_grids, other.name) == 3000:
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):  # on a busy machine it may have ended
            os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in said
    assert not other.exists() or (other / "settings.json").exists()  # so that it is still listed
    bench_here("clean", two_grids, "--yes")
    assert [folder for folder in two_grids.iterdir() if folder.is_dir()] == [cell.folder]
    assert "nothing to remove" in bench_here("clean", two_grids).stdout


@pytest.mark.long
def test_a_cell_that_somebody_works_on_is_not_removed(bench_here: Bench, two_grids: Path) -> None:
    (cell,) = cells(two_grids).values()
    (other,) = {file.parent for file in two_grids.glob("*/settings.json")} - {cell.folder}
    with store.locked(other):
        assert "is held by process" in bench_here("clean", two_grids, "--yes", code=2).stderr
    assert (other / "settings.json").exists()


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
            out, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        assert out.isascii()
    assert "fedavg" in out


@pytest.fixture
def study(write_study: WriteStudy, tmp_path: Path) -> list[str]:
    """The arguments of a small sweep into the folder `tuned`."""
    file = write_study({"methods": ["fedprox"]}, sampler="tpe", space={"lr": {"low": 0.1, "high": 1.0}}, trials=3)
    common = ["sweep", "--study", str(file), "--out", str(tmp_path / "tuned"), "--device", "cpu", "--jobs", "1"]
    return [*common, "--no-tracking", "--no-page", "--quiet"]


def finished(run: Path) -> dict[str, int]:
    """When each cell's status was written."""
    return {file.parent.name: file.stat().st_mtime_ns for file in run.glob("*/status.json")}


def table(run: Path) -> str:
    return (run / "report" / "tables" / "tuning.csv").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("damage", ["garbage", "in the middle", "cut"])
def test_a_damaged_study_is_one_line_and_is_recovered(bench_here: Bench, study: list[str], tmp_path: Path,
                                                      damage: str) -> None:  # fmt: skip
    """Deleting it, as the line says, recovers all: the same trials, and no cell runs again."""
    run = tmp_path / "tuned"
    bench_here(*study)
    before, chosen = finished(run), table(run)
    file = run / "study.db"
    content = bytearray(file.read_bytes())
    if damage == "garbage":
        content[:] = b"x" * len(content)
    elif damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[4096:] = b"\xa5" * (len(content) - 4096)
    for command in (study, ["report", str(run)]):
        file.write_bytes(content)
        said = bench_here(*command, code=2).stderr
        assert said.count("\n") == 1, said
        assert f"{file} cannot be used" in said
        assert "Delete it and give the same command again" in said
    file.unlink()
    bench_here(*study)
    assert finished(run) == before
    assert table(run) == chosen


@pytest.mark.long
def test_a_study_that_is_locked_is_waited_for(start: Start, bench_here: Bench, study: list[str], tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """For longer than SQLite's five seconds; then one line."""
    import sweeps.storage

    bench_here(*study)
    lock = sqlite3.connect(tmp_path / "tuned" / "study.db", isolation_level=None, check_same_thread=False)
    lock.execute("begin exclusive")
    with start(*study) as process:
        time.sleep(9)
        lock.execute("rollback")
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    monkeypatch.setattr(sweeps.storage, "LOCK_SECONDS", 0.1)
    lock.execute("begin exclusive")
    said = bench_here(*study, code=2).stderr
    lock.close()
    assert said.count("\n") == 1, said
    assert "database is locked. Another process keeps it so" in said


@pytest.mark.long
def test_too_few_open_files_are_one_line(grid: Grid, tmp_path: Path, environment: dict[str, str]) -> None:
    """The limit is the process's own. As many cells side by side as the line names do run; for one, no fewer are
    advised."""
    file = grid(methods=["fedavg"], rounds=1, seeds=list(range(40)))

    def run(limit: int, *more: object) -> tuple[int, str]:
        command = f"ulimit -n {limit} && exec {sys.executable} -m bench.cli run --grid {file} --out run --device cpu"
        line = ["sh", "-c", " ".join([command, "--quiet", *map(str, more)])]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    said = "a cell needs about 51 open files, and the system allows this process 40 (ulimit -n): raise the limit"
    assert run(40, "--jobs", 1, "--only", "seed=0") == (2, f"bench: {said}\n")
    code, said = run(64, "--jobs", 40)
    assert (code, said.count("\n")) == (2, 1), said
    assert "40 cells side by side need about 168 open files, and the system allows this process 64 (ulimit -n)" in said
    (jobs,) = re.findall(r"give --jobs (\d+),", said)
    assert not list((tmp_path / "run").glob("*/status.json"))
    code, said = run(64, "--jobs", jobs, "--only", "seed=0")
    assert code == 0, said


@pytest.mark.long
def test_a_long_preparation_says_what_it_does(start: Start, grid: Grid, tmp_path: Path) -> None:
    """A data set that needs its time."""
    (tmp_path / "slow.py").write_text(
        "import time\nimport numpy as np\nfrom bench.plugin import DATASETS\nfrom datasets.assemble import assemble\n\n"
        "@DATASETS.register('slow')\ndef slow(*, data_root, download):\n    time.sleep(2.5)\n"
        "    raise ValueError('nothing came')\n",
        encoding="utf-8",
    )
    file = grid(methods=["fedavg"], datasets=["slow"], plugins=["slow.py"])
    with start("run", "--grid", file, "--out", "run", "--device", "cpu", "--jobs", 1) as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert "run: 1 cells are being prepared (data, partitions, ids)" in said
    assert "Traceback" not in said
