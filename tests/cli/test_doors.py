"""The folder of another grid or study is refused by each way to start a run, unless the user takes it over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.api.run import run as run_from_python
from bench.errors import UserError
from tests.runs.conftest import Bench, Grid

SMALL = {"partition": "dirichlet", "clients": 4, "model": "logistic", "batch_size": 10, "rounds": 1, "alphas": [1.0]}


@pytest.fixture
def study(tmp_path: Path, arrays: Path) -> Callable[[str], Path]:
    """Write a study of that name, of two trials."""

    def write(name: str) -> Path:
        grid = {**SMALL, "methods": ["fedavg"], "datasets": [{"name": "npz", "path": str(arrays)}]}
        content = {
            "name": name, "grid": grid, "space": {"lr": [0.1, 0.5]}, "sampler": "grid", "seeds": [100, 101],
            "report_seeds": [0, 1],
        }  # fmt: skip
        path = tmp_path / f"study_{name}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


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
    bench_here: Bench, grid: Grid, study: Callable[[str], Path], tmp_path: Path
) -> None:
    """And a grid that of a study, also where the names are the same."""
    folder, tuned = tmp_path / "run", tmp_path / "tuned"
    file = grid(methods=["fedavg"], rounds=1, name="same")
    bench_here("run", "--grid", file, "--out", folder, "--device", "cpu", "--jobs", 1)
    before = (folder / "run.json").read_bytes()
    sweep = ("sweep", "--device", "cpu", "--jobs", 1, "--no-tracking", "--no-page", "--quiet")
    for name in ("same", "another"):
        said = bench_here(*sweep, "--study", study(name), "--out", folder, code=2).stderr
        assert said == f"bench: {folder} has the cells of grid 'same', and this is study {name!r}. Give another --out\n"
    assert (folder / "run.json").read_bytes() == before
    assert not (folder / "study.db").exists()
    for _ in range(2):  # its own folder is no other's
        bench_here(*sweep, "--study", study("same"), "--out", tuned)
    before = (tuned / "run.json").read_bytes()
    assert (
        "of study 'same', and this is study 'other'"
        in bench_here(*sweep, "--study", study("other"), "--out", tuned, code=2).stderr
    )
    refused = bench_here("run", "--grid", file, "--out", tuned, code=2).stderr
    assert "of study 'same', and this is grid 'same'. Give another --out, or --take-over" in refused
    assert (tuned / "run.json").read_bytes() == before
