"""`import bench`: what a script or a notebook uses, through the example of the docs."""

import subprocess
import sys
from pathlib import Path

import pytest

import bench
from tests.conftest import ROOT


def test_importing_bench_imports_nothing_heavy() -> None:
    """And names that are not there are said to be missing as usual."""
    code = "import bench, sys; print(sorted({'torch', 'pandas', 'numpy', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        bench.runn  # noqa: B018


def test_every_name_is_there_and_listed() -> None:
    for name in bench.__all__:
        assert callable(getattr(bench, name))
        assert name in dir(bench)


@pytest.mark.long
def test_the_example_of_the_docs_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """In a process of its own, from another folder, as a user would run it."""
    file = ROOT / "docs" / "examples" / "from_python.py"
    done = subprocess.run([sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
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
