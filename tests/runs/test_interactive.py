"""Definitions in a notebook: saved as files that workers import, with ids of their own, or refused in one line.

The session is like IPython's: `__main__` has no file, each cell is compiled under a name of which the line cache has
the text, and `In` has the cells in their order.
"""

import re
from pathlib import Path

import pytest

from bench.runs.interactive import _free_names
from tests.conftest import ROOT
from tests.runs.conftest import Bench
from tests.runs.sessions import METHOD, session
from tests.warm import Python

MINE = (ROOT / "docs" / "examples" / "plugin" / "mine.py").read_text(encoding="utf-8")
CELLS = [part.strip() + "\n" for part in re.split(r"\n\n\n(?=@|class)", MINE)]
"""The example of the docs, each definition in a cell of its own."""

RUN = """
import bench
try:
    view = bench.run("grid.yaml", out="run", device="cpu", jobs=1, quiet=True)
    print(json.dumps([[cell.id, cell.status.state] for cell in view.cells]))
except bench.errors.UserError as error:
    print(json.dumps(f"refused: {error}"))
"""


GRID = """
methods: [mine]
datasets: [digits]
alphas: [1.0]
clients: 4
rounds: 1
seeds: [0]
model: logistic
lr: 0.1
batch_size: 10
"""


@pytest.mark.long
def test_definitions_of_a_notebook_run_and_go_on_in_a_new_session(tmp_path: Path, python: Python, bench: Bench) -> None:
    """A method, a data set, a partition and a model, each in a cell of its own; the saved files are plug-ins."""
    grid = (ROOT / "docs" / "examples" / "plugin" / "grid.yaml").read_text(encoding="utf-8")
    grid = re.sub(r"plugins:.*\n", "", re.sub(r"rounds: \d+", "rounds: 1", grid))
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    (ran,) = session(python, tmp_path, [*CELLS, RUN])
    assert {state for _, state in ran} == {"done"}, ran
    files = sorted((tmp_path / "run" / "code").glob("*.py"))
    assert [re.sub("_[0-9a-f]{8}.py", "", file.name) for file in files] == [
        "half_fedavg", "left_to_right", "tiny_net", "two_moons",
    ]  # fmt: skip
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/*/status.json")}
    plugins = [part for file in files for part in ("--plugin", str(file))]
    command = ["run", "--grid", "grid.yaml", "--out", "run", "--device", "cpu", "--jobs", "1", "--no-tracking"]
    assert f"run: 0 cells to run, {len(written)} finished before" in bench(*command, *plugins).stderr
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("run/*/status.json")} == written


@pytest.mark.long
def test_the_code_of_a_cell_is_part_of_the_id(tmp_path: Path, python: Python) -> None:
    """Also that of a function beside it; comments are not, and a cell that runs again changes nothing."""
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    commented = METHOD.replace("    mean_of", "    # a mean\n    mean_of")
    ran = session(
        python, tmp_path, [METHOD, RUN, METHOD, RUN, commented, RUN, METHOD.replace("/ 2", "/ 3"), RUN, METHOD, RUN]
    )
    first, again, with_comment, other, back = ran
    assert first == again == with_comment == back
    assert other != first
    assert {state for cells in ran for _, state in cells} == {"done"}


@pytest.mark.long
def test_what_a_file_cannot_hold_is_refused_by_name(tmp_path: Path, python: Python) -> None:
    """Values of the notebook, a function whose source is gone, and names that are nowhere; and nothing is written."""
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    cells = [
        "SHARE = 0.5\nmade = eval('lambda one: one')\nmade.__name__ = 'made'",
        METHOD.replace("/ 2", "* SHARE * made(missing)"),
        RUN,
    ]
    assert session(python, tmp_path, cells) == [
        "refused: method 'mine' uses SHARE, made, missing of the notebook, which its workers do not have: make it part "
        "of the definition (a hyperparameter, an option, an argument's default), or put all of it into a .py file and "
        "load that by bench.load_file"
    ]
    (said,) = session(python, tmp_path, [METHOD, RUN], "prompt")
    assert said == (
        "refused: method 'mine' is defined where Python keeps no source (a plain prompt, exec): put it into a .py file "
        "and load that by bench.load_file, or use a notebook"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path, python: Python) -> None:
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    for folder in ("run", "outside"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run" / "code").symlink_to(tmp_path / "outside")
    (said,) = session(python, tmp_path, [METHOD, RUN])
    assert said.startswith("refused: run/code is or lies behind a link")
    assert not list((tmp_path / "outside").iterdir())


def test_the_body_of_a_class_may_take_a_name_that_it_gives_itself() -> None:
    """`Hyper = Hyper`, as our own methods write it; a name that the class made itself is none of the notebook's."""
    source = "class Mine:\n    Hyper = Hyper\n    share = 1\n    half = share / 2\n"
    assert _free_names(source, {"Hyper": int, "share": 0.5}) == {"Hyper"}
