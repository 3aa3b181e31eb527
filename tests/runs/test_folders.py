"""A working folder with packages of the user's that are named like this project's, and a run folder of an odd name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.child_processes import safe_path
from tests.runs.conftest import Bench, Grid

BENCH = str(Path(sys.executable).with_name("bench"))
GRID = "name: g\ndatasets: [digits]\nclients: 4\nalpha: 0.5\nmodel: mlp\nrounds: 1\nmethods: [fedavg, local]\n"
SCRIPT = """
import bench

if __name__ == "__main__":
    print(len(bench.run("g.yaml", out="p", jobs=2, quiet=True).cells))
"""


@pytest.mark.long
def test_the_user_s_packages_are_nowhere_imported(tmp_path: Path) -> None:
    """Not in the processes that cells run in either, by the command and from a script that lies elsewhere."""
    project, script = tmp_path / "project", tmp_path / "script.py"
    for name in ("bench", "datasets", "methods", "reports", "sweeps", "mlflow", "torch"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise RuntimeError('the user\\'s {name} was imported')\n")
    (project / "g.yaml").write_text(GRID)
    for line in (
        ["run", "--grid", "g.yaml", "--out", "o", "--jobs", "2"],
        ["verify", "o", "--cells", "2", "--jobs", "2"],
        ["report", "o"],
    ):
        done = subprocess.run([BENCH, *line], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (project / "o" / "report" / "index.html").exists()
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], cwd=project, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2", done.stderr


def test_a_python_that_imports_from_the_working_folder_says_so_to_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for first in ("", str(tmp_path), str(tmp_path / "a" / "..")):
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        assert safe_path() == {}
    monkeypatch.setattr(sys, "path", [str(Path(sys.executable).parent), *sys.path])
    assert safe_path() == {"PYTHONSAFEPATH": "1"}


def test_a_name_that_is_no_text_is_refused_in_one_line(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """`run.json` names the command, and is UTF-8."""
    name = os.fsdecode(b"bad\xff")
    said = bench_here("run", "--grid", grid(methods=["fedavg"]), "--out", name, "--quiet", code=2).stderr
    assert said == "bench: --out 'bad\\udcff': its name is not text in UTF-8; give another one\n"
    assert os.listdir(tmp_path) == ["small.yaml"]
