"""What a sweep has chosen, as a grid that runs as it is."""

from pathlib import Path

import pytest
import yaml

from bench.config.grid import load_grid
from bench.errors import UserError
from bench.results.results import load_run
from tests.sweeps.conftest import Write
from tests.warm import PATIENCE, Start


@pytest.mark.long
def test_the_chosen_settings_are_a_grid_of_the_same_cells(
    write: Write, start: Start, start_in: Start, tmp_path: Path
) -> None:
    """Two methods on two tasks, each with values of its own: the ids are those of the sweep's reported runs."""
    study = write({"methods": ["fedprox", "ditto"], "alphas": [1.0, 0.2]}, space={"lr": [0.03, 0.3]}, trials=2)
    with start("--study", study, "--out", tmp_path / "run", "--jobs", 2, "--quiet", "--no-page") as sweep:
        _, err = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, err
    best = tmp_path / "run" / "best.yaml"
    assert f"bench run --grid {best}" in err
    with start_in(["run", "--grid", str(best), "--out", "again", "--device", "cpu", "--quiet"], tmp_path) as again:
        out, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, out + err
    reported = {cell.id for cell in load_run(tmp_path / "run").cells if cell.settings.protocol == "honest"}
    rerun = [cell.id for cell in load_run(tmp_path / "again").cells]
    assert len(rerun) == 8
    assert set(rerun) == reported
    for id in rerun:
        one, other = (tmp_path / run / id / "metrics.csv" for run in ("run", "again"))
        assert one.read_bytes() == other.read_bytes()
    _assert_it_can_be_changed_and_says_what_is_wrong(best)


def _assert_it_can_be_changed_and_says_what_is_wrong(best: Path) -> None:
    changed = load_grid(str(best), ["lr=0.25", "seeds=[7]"])
    assert {(cell.lr, cell.seed) for cell in changed.cells} == {(0.25, 7)}
    content = yaml.safe_load(best.read_text())
    for entry, message in (
        ({"lr": "fast"}, 'lr = "fast" should be a number'),
        ({"hp": {"mo": 1}}, "unknown hyperparameter 'mo'"),
        ({"rouds": 3}, "unknown setting 'rouds'"),
    ):
        content["cells"][0].update(entry)
        best.write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match=message) as refused:
            load_grid(str(best))
        assert f"{best}:" in str(refused.value)
        for key in entry:
            content["cells"][0].pop(key)
