"""Two machines that share a folder, simulated by two sets of Linux namespaces on this machine."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from tests.runs.conftest import Grid
from tests.runs.helpers import cells, contents, states, wait_for

pytestmark = pytest.mark.faults


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
    options = Options(device="cpu")
    for cell in load_run(shared / "run").cells:
        run_cell(cell.settings, tmp_path / "whole" / cell.id, options)
    assert contents(shared / "run") == contents(tmp_path / "whole")
    assert not list(shared.rglob("*.tmp"))
