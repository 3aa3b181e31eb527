"""Batches of one sample under BatchNorm: the command, its dry run and Python refuse them alike, before a cell runs."""

import pytest

import bench as front_door
from bench.errors import UserError
from tests.results.saved import Grid
from tests.runs.conftest import Bench

SAYS = "batch_size: 1: BatchNorm in model 'resnet18' has no variance of a single sample; set `batch_size` to 2 or more"


@pytest.mark.long
def test_batches_of_one_are_refused_alike_everywhere(bench_here: Bench, grid: Grid) -> None:
    file = grid(methods=["fedavg"], model="resnet18", batch_size=1)  # pictures of 6 x 6, of which one pixel is left
    assert SAYS in bench_here("run", "--grid", file, "--out", "run", "--device", "cpu", code=2).stderr
    forecast = bench_here("run", "--grid", file, "--out", "run", "--device", "cpu", "--dry-run").stdout
    assert "missing, for 1 cells: fedavg blobs alpha=1 seed=0: " + SAYS in forecast
    with pytest.raises(UserError, match=SAYS):
        front_door.run(file, out="run", device="cpu", quiet=True)
    settings = front_door.load_grid(str(file)).cells[0]
    with pytest.raises(UserError, match=SAYS):
        front_door.Federation.of(settings)
