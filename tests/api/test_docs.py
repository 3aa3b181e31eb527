"""docs/python.md, docs/modern-networks.md and the examples that they name: every block and every file runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runs.test_interactive import SESSION


def blocks(page: str, *others: str) -> list[str]:
    """The Python blocks of a page, in their order; it has no others but those of `others`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in fences} <= {"python", *others}, "a block that no test runs"
    return [block for language, block in fences if language == "python"]


def notebook(cells: list[str], folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the cells one after the other in a folder, as those of one notebook."""
    return subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(cells), "notebook"],
        cwd=folder, env={**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(folder)])},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_every_block_of_the_page_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """One after the other, as the cells of one notebook, in a folder of their own."""
    done = notebook(blocks("python.md"), tmp_path, environment)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "<run runs/mine: 2 cells, 2 done>" in said
    assert "<run runs/own: 2 cells, 2 done>" in said
    assert "fedavg digits alpha=0.1 seed=0: round 3/3: GM 0." in said
    assert "\nTrue [" in said
    assert "warning" not in done.stderr
    assert len(next(tmp_path.glob("norms_*.txt")).read_text().splitlines()) == 3
    assert (tmp_path / "scores.csv").read_text().startswith("label,dataset,case,alpha,seed,cell,round,")
    assert (tmp_path / "runs" / "mine" / "report" / "index.html").exists()


@pytest.mark.long
def test_every_block_about_modern_networks_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """The parts of a grid among them fit each other: the package may be missing here."""
    done = notebook(blocks("modern-networks.md", "yaml", "text"), tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert "<run runs/rows: 2 cells, 2 done>" in done.stdout
    assert "<run runs/again: 2 cells, 2 done>" in done.stdout
    assert "warning" not in done.stderr


@pytest.mark.long
def test_the_notebook_like_example_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """From another folder, and again: then nothing is left to run, and a changed script keeps the method's cells."""
    file = ROOT / "docs" / "examples" / "notebook_like.py"
    script = tmp_path / "mine.py"
    for text, left in ((file.read_text(), 2), (file.read_text() + "\nprint('a new last line')\n", 0)):
        script.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"runs/halfway: {left} cells to run" in done.stderr
        assert "<run runs/halfway: 2 cells, 2 done>" in done.stdout
        assert re.search(r"\[(\d, ){4}\d\] predicted", done.stdout)
    assert (tmp_path / "curves.png").stat().st_size > 1000
