"""A server and its sites as real processes of the real command line, which are killed and started again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.sites.export import export, write_samples
from bench.sites.job import SiteJob
from bench.sites.rehearsal import differences, folders, simulate
from tests.runs.helpers import until
from tests.sites.conftest import cell
from tests.warm import PATIENCE, Started, Warm

pytestmark = pytest.mark.long

OPENED = """\
import os, sys
opened, said = (os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2))
for stream in (1, 2):
    os.dup2(said, stream)
sys.addaudithook(lambda event, what: event == "open" and os.write(opened, f"{what[0]}\\n".encode()))
from bench.cli import main
main()
"""
"""`bench` in an interpreter that notes each file that it opens, and says to a file what it says."""


class Processes:
    """The processes of a job over mailboxes, each of which notes what it opens. The first server and the first site
    have new interpreters; the others are forked from the warm process where there is one."""

    def __init__(self, work: Path, warm: Warm | None, environment: dict[str, str]) -> None:
        self.work = work
        self.warm = warm
        self.environment = environment
        self.running: list[Started] = []
        self.kinds = set[str]()

    def start(self, name: str, *arguments: str) -> Started:
        """Start the server or a site, or start it again."""
        place = ["--box", str(self.work / "box"), "--folder", str(self.work / name)]
        notes = [str(self.work / f"{name}.{what}") for what in ("opened", "log")]
        words = ["-c", OPENED, *notes, "sites", *arguments, *place]
        if self.warm and arguments[0] in self.kinds:
            process: Started = self.warm.python(words, self.work)
        else:
            process = subprocess.Popen([sys.executable, *words], cwd=self.work, env=self.environment, text=True)
        self.kinds.add(arguments[0])
        self.running.append(process)
        return process

    def site(self, i: int) -> Started:
        """Start a site, or start it again."""
        return self.start(f"site-{i}", "join", "job", "--site", str(i))

    def server(self) -> Started:
        """Start the server, or start it again."""
        return self.start("server", "serve", "job", "--patience", str(PATIENCE))

    def kill(self, process: Started) -> None:
        """Kill a process."""
        process.kill()
        process.wait()


@pytest.fixture
def processes(tmp_path: Path, warm: Warm | None, environment: dict[str, str]) -> Iterator[Processes]:
    of = Processes(tmp_path, warm, environment)
    yield of
    for process in of.running:
        with process:
            of.kill(process)


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
    text = log.read_text(encoding="utf-8")
    assert "left out" not in text
    assert all(f"site {i} says that it has " in text for i in range(3))
    assert differences(simulate(settings, Path("data")), work) == []

    models = [(work / f"site-{i}" / "model.safetensors").read_bytes() for i in range(3)]
    (work / "site-2" / "model.safetensors").unlink()
    assert processes.site(2).wait(PATIENCE) == 0  # it comes back after its last round, gets its model again, and ends
    assert (work / "site-2" / "model.safetensors").read_bytes() == models[2]

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
