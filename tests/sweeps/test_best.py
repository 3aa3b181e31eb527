"""What a sweep has chosen, as a grid that runs as it is."""

from pathlib import Path

import pytest

from bench.results.results import load_run
from tests.sweeps.conftest import Bench, Write


@pytest.mark.long
def test_the_chosen_settings_are_a_grid_of_the_same_cells(write: Write, bench: Bench, tmp_path: Path) -> None:
    """Two methods on two tasks, each with values of its own: the ids are those of the sweep's reported runs."""
    study = write({"methods": ["fedprox", "ditto"], "alphas": [1.0, 0.2]}, space={"lr": [0.03, 0.3]}, trials=2)
    common = ("--device", "cpu", "--no-tracking", "--quiet")
    said = bench("sweep", "--study", study, "--out", tmp_path / "run", "--jobs", 2, "--no-page", *common)
    best = tmp_path / "run" / "best.yaml"
    assert f"bench run --grid {best}" in said
    bench("run", "--grid", best, "--out", "again", *common)
    reported = {cell.id for cell in load_run(tmp_path / "run").cells if cell.settings.protocol == "honest"}
    rerun = [cell.id for cell in load_run(tmp_path / "again").cells]
    assert len(rerun) == 8
    assert set(rerun) == reported
    for id in rerun:
        one, other = (tmp_path / run / id / "metrics.csv" for run in ("run", "again"))
        assert one.read_bytes() == other.read_bytes()
