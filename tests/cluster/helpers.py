"""What several tests of clusters need."""

from pathlib import Path

from bench.results.results import load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Keep, Options
from tests.cluster.nodes import Nodes
from tests.runs.helpers import contents, states


def texts(run: Path) -> list[str]:
    """The contents of the cells' logs."""
    return [path.read_text() for path in run.glob("*/log.txt")]


def command(nodes: Nodes, file: Path, run: Path) -> list[object]:
    """The arguments that run a grid on the cluster."""
    return ["run", "--grid", file, "--out", run, "--ray", nodes.address, "--device", "cpu", "--cpus-per-cell", 1]


def assert_undisturbed(run: Path, tmp_path: Path, keep: Keep = "none") -> None:
    """Check that every cell has the bytes of an undisturbed run, and that no other files are left."""
    assert set(states(run).values()) == {"done"}
    for cell in load_run(run).cells:
        run_cell(cell.settings, tmp_path / "whole" / cell.id, Options(device="cpu", keep=keep))
    assert contents(run) == contents(tmp_path / "whole")
    assert not list(run.rglob("*.tmp"))
    assert not (run / "ray.token").exists()
    assert {path.name for path in run.glob("*/*")} == {path.name for path in (tmp_path / "whole").glob("*/*")}
