"""MLflow's copy of a finished cell follows what changes later: added scores, and the score that chooses the round."""

from pathlib import Path
from typing import Any

import pytest

from bench.results.figures import reported_figures
from bench.results.further_tests import evaluate_cell
from bench.results.results import CellView, load_run
from bench.runs.cell_options import Options
from bench.runs.tracking import mirror_run, reported_points
from bench.settings import PlainTest
from bench.store import store
from tests.runs.helpers import make_run

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def with_score(run: Path, name: str) -> CellView:
    """The cell, once `run.json` says that this score chooses its round."""
    info = store.read_json(run / "run.json")
    info["cells"][0]["settings"]["select_by"] = name
    store.write_json(run / "run.json", info)
    return load_run(run).cells[0]


def test_later_scores_and_another_reported_round_reach_mlflow(
    arrays: Path,
    uri: str,
    tmp_path: Path,
) -> None:
    from mlflow import MlflowClient

    options = Options(device="cpu", executor="sequential", keep="best")
    run = make_run(
        tmp_path / "run", arrays, ["ditto"], options=options, lr=1.5, alphas=[0.2], rounds=8, seeds=[2], metrics=["nll"]
    )
    client = MlflowClient(uri)
    cell = load_run(run).cells[0]

    def mirrored() -> dict[str, float]:
        mirror_run(run, uri)
        return {name: value for name, value in copy().data.metrics.items() if name.startswith("reported/")}

    def copy() -> Any:
        """The one MLflow run of the cell."""
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        [only] = client.search_runs(experiments, f"tags.cell = '{cell.id}'")
        return only

    def files() -> set[str]:
        return {file.path for file in client.list_artifacts(copy().info.run_id)}

    assert mirrored() == {point.name: point.value for point in reported_points(cell)}
    first = copy().info.run_id
    assert "evaluated.csv" not in files()

    evaluate_cell(cell, [PlainTest(name="others")], ["auroc"])
    after = mirrored()
    assert any(name.endswith("/auroc") for name in after)
    assert "evaluated.csv" in files()
    assert copy().info.run_id == first

    before = [figure["round"] for figure in reported_figures(cell)]
    others = (with_score(run, name) for name in ("loss", "nll"))
    moved = next(c for c in others if [figure["round"] for figure in reported_figures(c)] != before)
    assert mirrored() == {point.name: point.value for point in reported_points(moved)} != after
    assert copy().info.run_id != first
