"""What each way to start a run refuses alike: another grid's folder, and a device that is not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.api.run import run as run_from_python
from bench.errors import UserError
from tests.runs.conftest import Bench, Grid
from tests.warm import PATIENCE, Start

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


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
DEVICES = {
    "no GPU": ("run", ["--device", "cuda"], "--device cuda: torch sees no CUDA device here"),
    "no GPU, jobs": ("run", ["--device", "cuda", "--jobs", "2"], "--device cuda: torch sees no CUDA device here"),
    "a number": ("run", ["--device", "cuda:3", "--jobs", "2"], "CUDA_VISIBLE_DEVICES=3"),
    "a sweep": ("sweep", ["--device", "cuda", "--jobs", "2"], "--device cuda: torch sees no CUDA device here"),
    "misspelt": ("sweep", ["--device", "cudda"], "Did you mean 'cuda'?"),
    "another maker's": (
        "sweep",
        ["--device", "mps"],
        "--device mps: there is no such device. Devices: auto, cpu, cuda",
    ),
    "twice": ("sweep", ["--device", "cpu", "--device", "cuda"], "--device is given 2 times"),
}


@pytest.mark.parametrize("case", DEVICES)
def test_a_device_that_is_not_there_is_refused_once(
    start_in: Start, grid: Grid, study: Callable[[str], Path], tmp_path: Path, case: str
) -> None:
    """In one line, before anything is written, whatever `--jobs` is."""
    door, arguments, message = DEVICES[case]
    file = ["--grid", grid(methods=["fedavg", "local"])] if door == "run" else ["--study", study("tuned")]
    command = [door, *map(str, file), "--quiet", "--out", str(tmp_path / "out"), *arguments]
    with start_in(command, tmp_path, NO_GPU) as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, said
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "out").exists()
