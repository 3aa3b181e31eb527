"""The folder of another grid or study is refused by each way to start a run, unless the user takes it over."""

from pathlib import Path
from typing import Any

import pytest

from bench.api.run import run as run_from_python
from bench.errors import UserError
from tests.cli.conftest import WriteStudy
from tests.runs.conftest import Bench, Grid


def test_python_refuses_the_folder_of_another_grid_as_the_command_does(grid: Grid, tmp_path: Path) -> None:
    """An edited grid goes into its own folder again; another one only where the caller says so."""
    folder = tmp_path / "run"
    small: dict[str, Any] = {"device": "cpu", "jobs": 1, "quiet": True, "out": folder}
    run_from_python(grid(methods=["fedavg"], rounds=1), **small)
    run_from_python(grid(methods=["fedavg"], rounds=1, lr=0.25), **small)
    before = (folder / "run.json").read_bytes()
    other = grid(methods=["local"], rounds=1, name="another")
    with pytest.raises(UserError, match=r"has the cells of grid 'small', and this is grid 'another'.*take_over=True"):
        run_from_python(other, **small)
    assert (folder / "run.json").read_bytes() == before
    taken = run_from_python(other, **small, take_over=True)
    assert [cell.label for cell in taken.cells] == ["local"]
    assert len(list(folder.glob("*/settings.json"))) == 3


@pytest.mark.long
def test_a_sweep_refuses_the_folder_of_a_grid_and_of_another_study(
    bench_here: Bench, grid: Grid, write_study: WriteStudy, tmp_path: Path
) -> None:
    """And a grid that of a study, also where the names are the same."""
    folder, tuned = tmp_path / "run", tmp_path / "tuned"
    file = grid(methods=["fedavg"], rounds=1, name="same")
    bench_here("run", "--grid", file, "--out", folder, "--device", "cpu", "--jobs", 1)
    before = (folder / "run.json").read_bytes()
    sweep = ("sweep", "--device", "cpu", "--jobs", 1, "--no-tracking", "--no-page", "--quiet", "--study")
    for name in ("same", "another"):
        said = bench_here(*sweep, write_study(name=name), "--out", folder, code=2).stderr
        assert said == f"bench: {folder} has the cells of grid 'same', and this is study {name!r}. Give another --out\n"
    assert (folder / "run.json").read_bytes() == before
    assert not (folder / "study.db").exists()
    for _ in range(2):  # its own folder is no other's
        bench_here(*sweep, write_study(name="same"), "--out", tuned)
    before = (tuned / "run.json").read_bytes()
    said = bench_here(*sweep, write_study(name="other"), "--out", tuned, code=2).stderr
    assert "of study 'same', and this is study 'other'" in said
    said = bench_here("run", "--grid", file, "--out", tuned, code=2).stderr
    assert "of study 'same', and this is grid 'same'. Give another --out, or --take-over" in said
    assert (tuned / "run.json").read_bytes() == before
