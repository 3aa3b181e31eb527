"""Trials in MLflow: nested under the run of their study."""

from pathlib import Path

import pytest

from bench.results.results import load_run
from bench.runs.tracking import embedded_uri, mirror_run
from sweeps.study_reader import load_study
from tests.sweeps.conftest import Write
from tests.sweeps.helpers import run

# MLflow's own imports use what SQLAlchemy is about to remove
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.long
def test_trials_stand_under_their_study(write: Write, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    study, folder = load_study(str(write(trials=2)), []), tmp_path / "run"
    run(study, folder)
    uri = embedded_uri(folder)
    for _ in range(2):  # the second finds what the first wrote
        assert mirror_run(folder, uri) == len(load_run(folder).cells) == 4
    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [one for one in client.search_experiments() if one.name == "small"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [one for one in runs if one.data.tags.get("study") == "small"]
    children = [one for one in runs if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {one.data.tags["cell"] for one in children} == {cell.id for cell in load_run(folder).cells}
    assert len(runs) == 5
