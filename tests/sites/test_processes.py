"""A server and its sites as real processes of the real command line, which are killed and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.sites.export import export, write_samples
from bench.sites.job import SiteJob
from bench.sites.loopback import differences, folders, simulate
from tests.sites.conftest import cell
from tests.warm import PATIENCE

pytestmark = pytest.mark.long

OPENED = """\
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(lambda event, what: event == "open" and os.write(log, f"{what[0]}\\n".encode()))
from bench.cli import main
main()
"""
"""`bench` in an interpreter that notes each file that it opens."""


class Processes:
    """The processes of a job over mailboxes, each of which notes what it opens."""

    def __init__(self, work: Path, environment: dict[str, str]) -> None:
        self.work = work
        self.environment = environment
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the server or a site, or start it again."""
        place = ["--box", str(self.work / "box"), "--folder", str(self.work / name)]
        command = [sys.executable, "-c", OPENED, str(self.work / f"{name}.opened"), "sites", *arguments, *place]
        with (self.work / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.work, env=self.environment, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def site(self, i: int) -> "subprocess.Popen[bytes]":
        """Start a site, or start it again."""
        return self.start(f"site-{i}", "join", "job", "--site", str(i))

    def server(self) -> "subprocess.Popen[bytes]":
        """Start the server, or start it again."""
        return self.start("server", "serve", "job", "--patience", str(PATIENCE))

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill a process."""
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def processes(tmp_path: Path, environment: dict[str, str]) -> Iterator[Processes]:
    of = Processes(tmp_path, environment)
    yield of
    for process in of.running:
        if process.poll() is None:
            of.kill(process)


def until(there: Callable[[], bool]) -> None:
    """Wait until something is there."""
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_processes_that_are_killed_and_started_again_give_the_same_bytes(processes: Processes) -> None:
    """Killed are a site while it holds the state of a round, and the server while sites answer it."""
    work, settings = processes.work, cell("ditto", rounds=6)
    export(settings, Path("data"), work / "job")
    write_samples(settings, Path("data"), folders(work, SiteJob.load(work / "job" / "job.json")))
    sites = [processes.site(i) for i in range(3)]
    server = processes.server()
    until(lambda: (work / "site-1" / "state-000002").exists())
    processes.kill(sites[1])
    sites[1] = processes.site(1)
    until(lambda: (work / "server" / "checkpoint" / "00000003").exists() or server.poll() is not None)
    processes.kill(server)
    server = processes.server()
    log = work / "server.log"
    assert server.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
    assert [site.wait(PATIENCE) for site in sites] == [0, 0, 0]
    assert "left out" not in log.read_text(encoding="utf-8")
    assert differences(simulate(settings, Path("data")), work) == []

    opened = {f"site-{i}": _below(work, f"site-{i}") for i in range(3)} | {"server": _below(work, "server")}
    for name, paths in opened.items():
        assert f"{name}" in {path.parts[0] for path in paths}
        allowed = {name, f"{name}.opened", "job"}
        others = {path for path in paths if path.parts[0] not in allowed}
        boxes = {f"site-{i}" for i in range(3)} if name == "server" else {name}
        assert {path.parts[:2] for path in others} <= {("box", box) for box in boxes}
    assert Path("site-0/samples.npz") in opened["site-0"]


def _below(work: Path, name: str) -> set[Path]:
    """The files of the job's folders that a process has opened."""
    lines = (work / f"{name}.opened").read_text(encoding="utf-8").splitlines()
    paths = (Path(os.path.normpath(work / line)) for line in lines if line and not line.isdigit())
    return {path.relative_to(work) for path in paths if path.is_relative_to(work) and path != work}
