"""One cell shared by several actors of a real cluster has the bytes of one worker."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.helpers import assert_undisturbed, command, texts
from tests.cluster.nodes import Nodes
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import until, wait_for
from tests.warm import PATIENCE, Start

pytestmark = [pytest.mark.long, pytest.mark.faults]

Node = subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def others(nodes: Nodes) -> Iterator[list[Node]]:
    """Two nodes besides the head: room for three actors. The last test kills one of them."""
    started = [nodes.add(name) for name in ("second", "third")]
    yield started
    for node in started:
        nodes.kill(node)


def slow(tmp_path: Path) -> dict[str, object]:
    """A cell that is slow until there is a file `disturbed`."""
    return {"name": "odd_slow", "nap": 0.2, "until": str(tmp_path / "disturbed")}


@pytest.mark.usefixtures("others")
def test_actors_compute_what_one_worker_computes(bench: Bench, nodes: Nodes, grid: Grid, tmp_path: Path) -> None:
    """Two and three; methods of each kind share engines in `test_team.py`."""
    for devices in (2, 3):
        run = tmp_path / str(devices)
        bench(*command(nodes, grid(methods=["scd"]), run), "--devices-per-cell", devices)
        assert all(f"{devices} devices share its clients" in text for text in texts(run))
        assert_undisturbed(run, tmp_path)


@pytest.mark.usefixtures("others")
def test_more_devices_than_there_are(bench: Bench, nodes: Nodes, grid: Grid, tmp_path: Path) -> None:
    found = bench(*command(nodes, grid(methods=["fedavg"]), tmp_path / "run"), "--devices-per-cell", 4, code=2)
    assert "\nbench: --devices-per-cell 4: the cluster has room for 3 of them" in found.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("odd_methods")
def test_a_node_with_one_of_the_actors_is_killed(
    start: Start, nodes: Nodes, others: list[Node], grid: Grid, tmp_path: Path
) -> None:
    """The cell waits until another node has come, and continues from its last checkpoint."""
    run = tmp_path / "run"
    arguments = command(nodes, grid(methods=[slow(tmp_path)], rounds=40), run)
    with start(*arguments, "--devices-per-cell", 3, "--checkpoint-seconds", 0.3) as process:
        wait_for(process, run, 4)
        until(lambda: bool(list(run.glob("*/checkpoint/*"))))
        nodes.kill(others[1])
        (tmp_path / "disturbed").touch()
        assert process.stderr
        assert any("another one continues it" in line for line in process.stderr)
        time.sleep(3)  # meanwhile it looks for room in vain
        fourth = nodes.add("fourth")
        _, err = process.communicate(timeout=PATIENCE)
    nodes.kill(fourth)
    assert process.returncode == 0, err
    assert_undisturbed(run, tmp_path)
