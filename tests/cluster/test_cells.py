"""Cells on a real cluster have the same bytes as without Ray, whatever is killed."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.results.results import load_run
from bench.rng import generator
from tests.cluster.helpers import assert_undisturbed, command, texts
from tests.cluster.nodes import Nodes, can_be_apart
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import states, until, wait_for
from tests.warm import PATIENCE, Start

pytestmark = [
    pytest.mark.long,
    pytest.mark.faults,
    pytest.mark.skipif(not can_be_apart(), reason="needs unshare and the right to make namespaces"),
]

Node = subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `shared` of all tests here, and one that is empty."""
    folder = tmp_path_factory.mktemp("cells")
    for name in ("shared", "elsewhere"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def seconds(nodes: Nodes) -> Iterator[list[Node]]:
    """The second nodes that there were: the last one lives unless a test killed it."""
    started: list[Node] = []
    yield started
    for node in started:
        nodes.kill(node)


@pytest.fixture
def second(nodes: Nodes, seconds: list[Node], folder: Path) -> Node:
    """A second node, which sees another, empty folder in place of the folder `shared`."""
    if not seconds or not nodes.lives(seconds[-1]):
        seconds.append(nodes.add("second", (folder / "elsewhere", folder / "shared")))
    return seconds[-1]


@pytest.fixture
def shared(folder: Path, tmp_path: Path) -> Path:
    """A run folder of this test, which the second node does not see."""
    (folder / "shared" / tmp_path.name).mkdir()
    return folder / "shared" / tmp_path.name / "run"


def meeting(tmp_path: Path, nap: float = 0.2) -> list[dict[str, object]]:
    """Two cells that wait in their third round until both run, so that each of two nodes gets one of them. They are
    slow until there is a file `disturbed`."""
    return [
        {
            "name": "odd_meets",
            "label": label,
            "nap": nap + more,
            "folder": str(tmp_path / "meeting"),
            "until": str(tmp_path / "disturbed"),
        }
        for label, more in (("here", 0.0), ("there", 0.01))
    ]


@pytest.mark.usefixtures("odd_methods", "second")
def test_with_and_without_the_run_folder_on_a_node(
    bench: Bench, nodes: Nodes, grid: Grid, shared: Path, tmp_path: Path
) -> None:
    """On two nodes, one of which does not see the run folder, the bytes are the same as without Ray; models arrive."""
    run = shared
    methods = ["fedavg", "fedper", "scd", "ditto", *meeting(tmp_path, 0.0)]
    arguments = [*command(nodes, grid(methods=methods), run), "--keep", "best"]
    assert "6 cells to run" in bench(*arguments).stderr
    assert_undisturbed(run, tmp_path, keep="best")
    assert any("in the run folder" in text for text in texts(run))
    assert any("on second, in scratch space" in text for text in texts(run))
    assert "0 cells to run, 6 finished before" in bench(*arguments).stderr


@pytest.mark.usefixtures("odd_methods", "second")
def test_ctrl_c_leaves_checkpoints(
    bench: Bench, start: Start, nodes: Nodes, grid: Grid, shared: Path, tmp_path: Path
) -> None:
    """Also the checkpoint of the node that does not see the run folder is sent to it."""
    run = shared
    arguments = command(nodes, grid(methods=meeting(tmp_path), rounds=40), run)
    with start(*arguments) as process:
        wait_for(process, run, 3)
        until(lambda: len(list(run.glob("*/metrics.csv"))) == 2)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    (tmp_path / "disturbed").touch()
    assert process.returncode == 130, err
    assert "The same command goes on: bench run" in err
    assert "Traceback" not in err
    assert set(states(run).values()) == {"interrupted"}
    assert all(list(cell.folder.glob("checkpoint/*")) for cell in load_run(run).cells)
    bench(*arguments)
    assert sum(text.count("going on after round") for text in texts(run)) == 2
    assert_undisturbed(run, tmp_path)


@pytest.mark.usefixtures("odd_methods")
@pytest.mark.parametrize("victim", ["driver", "node"])  # a node that is killed is started again for the next test
def test_what_is_killed_is_gone_on_with(
    bench: Bench, start: Start, nodes: Nodes, second: Node, grid: Grid, shared: Path, tmp_path: Path, victim: str
) -> None:
    """If a node that does not see the run folder is killed with all its processes, its cell continues from the last
    checkpoint that was sent to the run folder. If the driver is killed, the same command continues both cells."""
    run = shared
    file = grid(methods=meeting(tmp_path), rounds=40)
    arguments = [*command(nodes, file, run), "--checkpoint-seconds", 0.3]
    with start(*arguments) as process:
        until(lambda: any("on second" in text for text in texts(run)) and len(list(run.glob("*/checkpoint/*"))) >= 4)
        if victim == "node":
            nodes.kill(second)
            (tmp_path / "disturbed").touch()
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
            assert "its worker was lost: " in err
            assert "; another one continues it" in err
            notes = err.rpartition(": done, round 40/40")[2]
            assert re.search("note: (t?here)", notes)  # said once more at the end, as Ray prints pages over it
            assert "its worker was lost: " in notes
        else:
            process.kill()
            process.communicate(timeout=PATIENCE)
    if victim == "driver":
        bench(*arguments)  # workers of a killed driver may go on for a moment: they stay slow
        (tmp_path / "disturbed").touch()
    assert sum(text.count("starting with round 1\n") for text in texts(run)) == 2
    assert sum(text.count("going on after round") for text in texts(run)) == (1 if victim == "node" else 2)
    assert_undisturbed(run, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("odd_methods")
@pytest.mark.parametrize("moment", range(20))
def test_killed_at_random_moments(
    bench: Bench, start: Start, nodes: Nodes, second: Node, grid: Grid, shared: Path, tmp_path: Path, moment: int
) -> None:
    """The driver or a node is killed, with and without a shared run folder; the next command gives the bytes of a
    run without kills."""
    rng = generator("tests", "cluster", "moments", moment)
    run = shared if moment % 4 < 2 else tmp_path / "common" / "run"
    file = grid(methods=[{"name": "odd_slow", "nap": 0.1}, "fedper", "scd"], rounds=12)
    arguments = [*command(nodes, file, run), "--checkpoint-seconds", 0.1]
    with start(*arguments, "--quiet") as process:
        wait_for(process, run, 1)
        time.sleep(float(rng.uniform(0, 3)))
        process.kill() if moment % 2 else nodes.kill(second)
        process.communicate(timeout=PATIENCE)
    bench(*arguments)
    assert_undisturbed(run, tmp_path)
