"""`--executor debug`: the bytes of `sequential`, and the round, client, step and layer of what is not finite."""

from pathlib import Path

import pytest

from tests.cli import sick_method as sick
from tests.runs.conftest import Bench, Grid
from tests.runs.helpers import TABLES, cells

PLUGIN = Path(sick.__file__)
LAYER = f"{sick.LAYER} in 'w'"


def _run(bench: Bench, file: Path, run: Path, executor: str) -> None:
    common = ("--device", "cpu", "--jobs", 1, "--executor", executor, "--plugin", PLUGIN)
    bench("run", "--grid", file, "--out", run, *common)


@pytest.mark.long
def test_names_the_round_client_step_and_layer(bench: Bench, grid: Grid, tmp_path: Path) -> None:
    """Of a weight that ends the cell, and of a gradient that a method hides; the tables are those of `sequential`."""
    file = grid(methods=["sick", "sick_hidden"], model="mlp", model_options={"hidden": 8}, rounds=3)
    for executor in ("sequential", "debug"):
        _run(bench, file, tmp_path / executor, executor)
    plain, debug = cells(tmp_path / "sequential"), cells(tmp_path / "debug")
    ends = f"round {sick.ROUND}: part 'w' of client {sick.CLIENT} is not finite after training"
    place = f"at step {sick.STEP} of 6"
    assert plain["sick"].status.state == debug["sick"].status.state == "diverged"
    assert plain["sick"].status.reason == ends
    assert debug["sick"].status.reason == f"{ends}; first {place} (sick_loss): the loss (nan), gradient of {LAYER}"
    hidden = f"round {sick.ROUND}: client {sick.CLIENT} was not finite {place} (careful_step): the loss (nan), "
    assert debug["sick_hidden"].status.warnings == [f"{hidden}gradient of {LAYER}"]
    assert plain["sick_hidden"].status.warnings == []
    for name in ("sick", "sick_hidden"):
        assert debug[name].status.path == {**plain[name].status.path, "executor": "debug"}
        for table in TABLES:
            files = [tmp_path / executor / debug[name].id / table for executor in ("sequential", "debug")]
            assert len({file.read_bytes() if file.exists() else b"" for file in files}) == 1
