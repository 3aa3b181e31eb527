"""Cells on a real cluster: the bytes of a run without one, whatever is killed."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.runs.cell import Options, run_cell
from bench.runs.results import load_run
from tests.cluster.nodes import Nodes, can_be_apart
from tests.harness.helpers import cells, contents, states

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not can_be_apart(), reason="needs unshare and its rights")]

Bench = Callable[..., "subprocess.CompletedProcess[str]"]
Grid = Callable[..., Path]
MOMENTS = [pytest.param(k, marks=[pytest.mark.slow] if k >= 1 else []) for k in range(20)]
"""Seeded moments of a kill: one in every run of the tests, all with `make faults`."""


@pytest.fixture(scope="module")
def apart(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is another, empty one on a second node."""
    shared = tmp_path_factory.mktemp("shared")
    node = nodes.add("second", (tmp_path_factory.mktemp("elsewhere"), shared))
    yield shared
    if node.poll() is None:
        nodes.kill(node)


def logs(run: Path) -> dict[str, str]:
    return {label: (cell.folder / "log.txt").read_text() for label, cell in cells(run).items()}


def assert_undisturbed(run: Path, tmp_path: Path) -> None:
    """The bytes of every cell are those of a run that nothing disturbed, and nothing else is left."""
    assert set(states(run).values()) == {"done"}
    for cell in load_run(run).cells:
        run_cell(cell.settings, tmp_path / "whole" / cell.id, Options(device="cpu"))
    assert contents(run) == contents(tmp_path / "whole")
    assert not list(run.rglob("*.tmp"))
    assert not (run / "ray.token").exists()
    assert {path.name for path in run.glob("*/*")} == {path.name for path in (tmp_path / "whole").glob("*/*")}


def test_with_and_without_the_run_folder_on_a_node(
    bench: Bench, nodes: Nodes, grid: Grid, apart: Path, tmp_path: Path
) -> None:
    """Two nodes, one of which has neither the run folder nor the data: the same bytes as without Ray."""
    file, run = grid(methods=["fedavg", "fedper", "scd", "ditto"], seeds=[0, 1]), apart / "run"
    said = bench("run", "--grid", file, "--out", run, "--ray", nodes.address, "--device", "cpu", "--cpus-per-cell", 1)
    assert "8 cells to run" in said.stderr
    assert_undisturbed(run, tmp_path)
    found = "".join((cell.folder / "log.txt").read_text() for cell in load_run(run).cells)
    assert "in the run folder" in found
    assert "on second, in scratch space" in found
    assert (
        "0 cells to run, 8 finished before"
        in bench("run", "--grid", file, "--out", run, "--ray", nodes.address, "--device", "cpu").stderr
    )
