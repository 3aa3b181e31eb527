"""docs/python.md and the examples that it names: every block and every file runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.runs.test_interactive import SESSION


def blocks() -> list[str]:
    """The Python blocks of the page, in their order."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in fences} == {"python"}, "a block that no test runs"
    return [block for _, block in fences]


@pytest.mark.long
def test_every_block_of_the_page_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    """One after the other, as the cells of one notebook, in a folder of their own."""
    cells = blocks()
    done = subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(cells), "notebook"],
        cwd=tmp_path, env={**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(tmp_path)])},
        capture_output=True, text=True,
    )  # fmt: skip
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
