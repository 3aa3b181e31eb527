"""Pages of the manual with Python and the examples that they name: every block and every file runs."""

import doctest
import importlib.util
import json
import re
from pathlib import Path

import pytest

import bench
from tests.conftest import ROOT
from tests.runs.sessions import SESSION
from tests.warm import Python


def blocks(page: str, languages: tuple[str, ...] = ("python",)) -> dict[str, list[str]]:
    """The blocks of a page by language, in their order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in fences} == set(languages), "a block that no test runs"
    return {name: [block for language, block in fences if language == name] for name in languages}


def test_the_notebook_has_the_first_blocks_of_its_page() -> None:
    """So it runs as they do."""
    file = ROOT / "docs" / "examples" / "grid_to_figure.ipynb"
    cells = [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) + "\n" for cell in cells] == blocks("python.md")["python"][: len(cells)]
    assert len(cells) == 4


@pytest.mark.long
def test_every_block_of_the_page_runs(tmp_path: Path, python: Python) -> None:
    done = python("-c", SESSION, json.dumps(blocks("python.md")["python"]), "notebook", folder=tmp_path)
    said = done.stdout
    assert "<run runs/mine: 4 cells, 4 done>" in said
    assert "<run runs/own: 2 cells, 2 done>" in said
    assert "fedavg digits alpha=0.1 seed=0: round 3/3: GM 0." in said
    assert "\nTrue [" in said
    assert "warning" not in done.stderr
    assert len(next(tmp_path.glob("norms_*.txt")).read_text().splitlines()) == 3
    assert (tmp_path / "curves.pdf").stat().st_size > 1000
    assert (tmp_path / "scores.csv").read_text().startswith("label,dataset,case,alpha,seed,cell,round,")
    assert (tmp_path / "runs" / "mine" / "report" / "index.html").exists()


@pytest.mark.long
def test_every_block_about_modern_networks_and_scores_runs(tmp_path: Path, python: Python) -> None:
    cells = blocks("modern-networks.md", ("python", "yaml"))["python"]
    done = python("-c", SESSION, json.dumps(cells), "notebook", folder=tmp_path)
    assert "<run runs/rows: 2 cells, 2 done>" in done.stdout
    assert "<run runs/again: 2 cells, 2 done>" in done.stdout
    assert "warning" not in done.stderr
    of_page = blocks("scores.md", ("yaml", "python", ""))
    assert all(line.startswith("bench ") for line in of_page[""][0].splitlines())  # other tests give these commands
    (grid,) = of_page["yaml"]
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    run_grid = 'bench.run("grid.yaml", out="runs/grid", overrides=["rounds=1"])'
    done = python("-c", SESSION, json.dumps([*of_page["python"], run_grid]), "notebook", folder=tmp_path)
    assert "warning" not in done.stderr
    assert re.search(r"^\d+ +ditto +pm +local +0\.\d+$", done.stdout, re.MULTILINE)
    tables = list((tmp_path / "runs" / "grid").glob("*/scores.csv"))
    assert len(tables) == 2


@pytest.mark.long
@pytest.mark.parametrize(("package", "files"), [("tensorboard", "logs/*/events*"), ("wandb", "wandb/offline*/*.wandb")])
def test_a_callback_for_another_tracker_runs(package: str, files: str, tmp_path: Path, python: Python) -> None:
    """Where its package is installed, which is no part of any extra."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (script,) = [block for block in blocks("tracking.md", ("", "python"))["python"] if package in block]
    offline = 'import os\n\nos.environ["WANDB_MODE"] = "offline"\n'
    (tmp_path / "mine.py").write_text(offline + script, encoding="utf-8")
    grid = "{methods: [fedavg, local], datasets: [digits], alphas: [1.0], clients: 3, rounds: 2, model: logistic}"
    (tmp_path / "my-grid.yaml").write_text(grid, encoding="utf-8")
    done = python(tmp_path / "mine.py", folder=tmp_path)
    assert "warning" not in done.stderr, done.stderr
    assert len(list(tmp_path.glob(files))) == 2


@pytest.mark.long
def test_the_files_of_two_tutorials_run(tmp_path: Path, python: Python) -> None:
    """Each for a round or a trial; and the tables of the paper are made."""
    for page in ("privacy-and-attacks.md", "paper.md"):
        for block in blocks(page, ("yaml", "", "latex") if page == "paper.md" else ("yaml", ""))["yaml"]:
            if name := re.match(r"# (\w+\.yaml)\n", block):
                (tmp_path / name[1]).write_text(block, encoding="utf-8")
    short = '"rounds=1", "alphas=[0.1]"'
    cells = [
        f'import bench; bench.run("five.yaml", overrides=[{short}, "seeds=[0]", "methods=[fedavg]"])',
        f'bench.run("ablation.yaml", overrides=[{short}, "seeds=[0]"])',
        f'bench.sweep("paper.yaml", overrides=[{short}, "final_seeds=[]"], trials=1, page=False)',
        'bench.report("runs/paper", latex="pm", transpose=True)',
    ]
    done = python("-c", SESSION, json.dumps(cells), "notebook", folder=tmp_path)
    assert "5 cells" in done.stderr
    for table in ("main", "tables/standings", "tables/costs"):
        assert r"\begin{tabular}" in (tmp_path / "runs" / "paper" / "report" / f"{table}.tex").read_text()


@pytest.mark.long
def test_the_notebook_like_example_runs(tmp_path: Path, python: Python) -> None:
    """From another folder, and again: then nothing is left to run, and a changed script keeps the method's cells."""
    file = ROOT / "docs" / "examples" / "notebook_like.py"
    script = tmp_path / "mine.py"
    for text, left in ((file.read_text(), 2), (file.read_text() + "\nprint('a new last line')\n", 0)):
        script.write_text(text, encoding="utf-8")
        done = python(script, folder=tmp_path)
        assert f"runs/halfway: {left} cells to run" in done.stderr
        assert "<run runs/halfway: 2 cells, 2 done>" in done.stdout
        assert re.search(r"\[(\d, ){4}\d\] predicted", done.stdout)
    assert (tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.long
def test_the_example_of_hugging_face_goes_from_a_download_to_a_report(tmp_path: Path, python: Python) -> None:
    done = python(ROOT / "docs" / "examples" / "hugging_face.py", folder=tmp_path)
    assert "<run runs/hugging_face: 3 cells, 3 done>" in done.stdout
    assert (tmp_path / "runs" / "hugging_face" / "report" / "index.html").is_file()
    assert (tmp_path / "download" / "data" / "train-00000-of-00001.parquet").is_file()


@pytest.mark.long
@pytest.mark.parametrize("name", ["run", "report"])
def test_the_example_in_a_docstring_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tests = doctest.DocTestFinder(recurse=False).find(getattr(bench, name), name)
    said: list[str] = []
    [example] = [test for test in tests if test.examples]
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert outcome.attempted >= 4
    assert outcome.failed == 0, "".join(said)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
