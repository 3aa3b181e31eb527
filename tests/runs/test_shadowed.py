"""A working folder with packages of the user's that are named like this project's."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.child_processes import safe_path

BENCH = str(Path(sys.executable).with_name("bench"))
GRID = "name: g\ndatasets: [digits]\nclients: 4\nalpha: 0.5\nmodel: mlp\nrounds: 1\nmethods: [fedavg, local]\n"
SCRIPT = """
import bench

if __name__ == "__main__":
    print(len(bench.run("g.yaml", out="p", jobs=2, quiet=True).cells))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as users have them: `import datasets` there gets theirs."""
    folder = tmp_path / "project"
    for name in ("bench", "datasets", "methods", "reports", "sweeps", "mlflow", "torch"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('the user\\'s {name} was imported')\n")
    (folder / "g.yaml").write_text(GRID)
    return folder


@pytest.mark.long
def test_the_user_s_packages_are_nowhere_imported(project: Path) -> None:
    """Not in the processes that cells run in either, by the command and from a script that lies elsewhere."""
    for line in (
        ["run", "--grid", "g.yaml", "--out", "o", "--jobs", "2"],
        ["verify", "o", "--cells", "2", "--jobs", "2"],
        ["report", "o"],
    ):
        done = subprocess.run([BENCH, *line], cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (project / "o" / "report" / "index.html").exists()
    script = project.parent / "script.py"
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
