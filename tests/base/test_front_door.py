"""`import bench`: what a script or a notebook uses, through the example of the docs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from tests.conftest import ROOT
from tests.warm import Python


def test_every_name_is_there_and_listed() -> None:
    for name in bench.__all__:
        assert callable(getattr(bench, name))
        assert name in dir(bench)
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        bench.runn  # noqa: B018


@pytest.mark.long
def test_the_example_of_the_docs_runs(tmp_path: Path, python: Python) -> None:
    """In a process of its own, from another folder, as a user would run it."""
    done = python(ROOT / "docs" / "examples" / "from_python.py", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["ditto", "fedavg"]
    assert "10 clients" in done.stdout
    assert lines[-1] == "True"
    again = bench.load_run(str(tmp_path / "run"))
    assert {cell.status.state for cell in again.cells} == {"done"}
    assert set(again.results["label"]) == {"fedavg", "ditto"}
    shown = again._repr_html_()
    for text in ("<td>", "digits α=0.1 PM", "ditto", "±"):
        assert text in shown


@pytest.mark.long
def test_the_lines_of_the_readme_run(tmp_path: Path, environment: dict[str, str]) -> None:
    """In a new interpreter, with the grid that stands above them there, cut to one seed and two rounds."""
    blocks = re.findall(r"```(yaml|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (_, grid), (_, script) = blocks
    for long, short in (("[0, 1, 2]", "[0]"), ("rounds: 30", "rounds: 2")):
        assert long in grid
        grid = grid.replace(long, short)
    (tmp_path / "my-grid.yaml").write_text(grid, encoding="utf-8")
    (tmp_path / "mine.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(label in done.stdout for label in ("fedavg", "ditto", "SCD"))
    assert done.stdout.rstrip().endswith("])")
