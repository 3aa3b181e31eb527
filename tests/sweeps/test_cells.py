"""The cells of a study: ids on the user's own data, refused settings, later scores, the chosen grid, and MLflow."""

from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState

from bench.federation.cell_identity import Identities
from bench.plugin import load_file
from bench.results.results import load_run
from bench.rng import generator
from bench.runs.plan import PlannedCell
from bench.runs.tracking import embedded_uri, mirror_run
from bench.store import documents, store
from sweeps.cells import data_digests, list_cells, listed_ids, trial_cells, with_data
from sweeps.fair import budget_table, choose
from sweeps.report import run_sections
from sweeps.run import open_studies
from sweeps.session import _cells_so_far
from sweeps.storage import study_storage
from sweeps.study_reader import load_study
from tests.sweeps.conftest import Bench, Write
from tests.sweeps.helpers import run, trials

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

DATA = '''
import numpy as np
from bench.plugin import DATASETS
from datasets.assemble import assemble

@DATASETS.register("readings_of_a_study")
def load(*, data_root, download):
    """Readings of three classes."""
    with np.load(data_root / "readings.npz") as file:
        return assemble("readings", file["x"], file["y"], 90, mean=None, std=None)
'''
"""A data set of the user's own, which only its code knows to read."""

FAILING = '''
from pathlib import Path
from bench.method import METHODS, Hyperparameters, Method, Train, Upload, cross_entropy, hp

class Hyper(Hyperparameters):
    kind: int = hp(0, ge=0, le=2)

@METHODS.register("failing")
class Failing(Method):
    """FedAvg whose kind 1 fails after two cells of one round."""
    Hyper = Hyper
    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})

    def aggregate(self, server, messages):
        with Path("calls").open("a") as file:
            file.write(str(self.hp.kind))
        if self.hp.kind == 1 and Path("calls").read_text().count("1") > 2 and not Path("well").exists():
            raise RuntimeError("out of order")
        super().aggregate(server, messages)
'''


SWEEP = ("sweep", "--device", "cpu", "--no-tracking", "--no-page", "-q")


def write_readings(folder: Path, draw: int) -> None:
    rng = generator("tests", "sweeps", "readings", draw)
    y = np.arange(120) % 3
    np.savez(folder / "readings.npz", x=rng.normal(y[:, None], 1, (120, 5)).astype(np.float32), y=y)


@pytest.mark.long
def test_finalists_on_the_user_s_data_count_and_other_data_begin_another_search(
    write: Write, bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(DATA)
    grid = {"methods": ["fedavg"], "datasets": ["readings_of_a_study"], "rounds": 1}
    file = write(grid=grid, sampler="grid", trials=None, space={"lr": [0.03, 0.1, 0.3]})
    folder = tmp_path / "run"
    cells: list[set[str]] = []
    for draw in range(2):
        write_readings(tmp_path, draw)
        bench(*SWEEP, "--study", file, "--plugin", "mine.py", "--data-root", ".", "--out", folder)
        load_file(tmp_path / "mine.py")
        listed = load_run(folder).cells
        cells.append({cell.id for cell in listed})
        assert len(listed) == 3 * 2 + 3 * 2 + 2  # trials, finalists on further seeds, the chosen setting
        assert all(cell.status.state == "done" for cell in listed)
        (section,) = run_sections(folder)
        ((_, entries),) = section.tables[0].rows
        assert entries[1].value == 3
        assert entries[4].value == 12  # rounds trained, those of the finalists among them
        assert not any("no finalist" in note for note in section.tables[0].notes)
    assert not cells[0] & cells[1]
    assert all((folder / cell / "status.json").exists() for cell in cells[0])

    # what another command lists before its first trial: nothing that this one has done is missing
    identities, study = Identities(tmp_path), load_study(str(file), [])
    study = with_data(study, data_digests(study, identities))
    studies = open_studies(study, study_storage(folder))
    assert {cell.id for cell in _cells_so_far(study, studies, folder, identities)} == cells[1]


@pytest.mark.long
def test_a_finalist_that_fails_is_named_and_the_command_fails(write: Write, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    space = {"failing.kind": [0, 1, 2]}
    file = write(grid={"methods": ["failing"], "rounds": 1}, sampler="grid", trials=None, space=space, objective="gm")
    command = [*SWEEP, "--study", file, "--plugin", "failing.py", "--out", tmp_path / "run"]
    text = bench(*command, code=1)
    assert text.count("failing blobs trial 1: kind=1 alpha=1 seed=102: failed: RuntimeError: out of order") == 1
    (tmp_path / "well").touch()
    bench(*command)


@pytest.mark.long
def test_settings_that_a_method_refuses_together_are_a_pruned_trial(write: Write, tmp_path: Path) -> None:
    space = {"fedrod.head": ["linear", "hyper"], "fedrod.head_phase": ["joint", "after"]}
    file = write(grid={"methods": ["fedrod"], "rounds": 1}, sampler="grid", trials=None, space=space)
    study, folder = load_study(str(file), []), tmp_path / "run"
    tuner, studies, said = run(study, folder)
    assert tuner.failed == []
    by_values = {tuple(trial.params.values()): trial for trial in trials(study, folder)}
    refused = by_values.pop(("hyper", "after"))
    assert refused.state == TrialState.PRUNED
    assert "head_phase 'after' needs head 'linear'" in refused.user_attrs["reason"]
    assert any("refused: " in line for line in said)
    assert {trial.state for trial in by_values.values()} == {TrialState.COMPLETE}
    assert len(trial_cells(study, studies)) == 3 * 2
    assert budget_table(study, choose(study, studies, folder)).rows[0][1][1].value == 4
    assert run(study, folder)[2] == []


@pytest.mark.long
def test_a_score_asked_for_later_is_computed_and_no_trial_waits_for_ever(write: Write, tmp_path: Path) -> None:
    grid = {"methods": ["fedavg"], "rounds": 1}
    arguments = {"sampler": "grid", "trials": None, "space": {"lr": [0.1, 0.3]}}
    folder = tmp_path / "run"
    run(load_study(str(write(grid=grid, **arguments)), []), folder)
    scored = load_study(str(write(grid={**grid, "metrics": ["macro_f1"], "select_by": "macro_f1"}, **arguments)), [])
    tuner, _, _ = run(scored, folder)
    assert tuner.failed == []
    ended = trials(scored, folder)
    assert {trial.state for trial in ended} == {TrialState.COMPLETE}
    ids = [id for trial in ended for id in trial.user_attrs["cells"]]
    assert {store.read_status(folder / id).state for id in ids} == {"done"}


def test_a_cell_under_two_labels_is_listed_under_both_and_once_under_each(write: Write, tmp_path: Path) -> None:
    cell = load_study(str(write()), []).arms[0].cells[0]
    cells = [
        PlannedCell("0" * 16, cell.model_copy(update={"label": label, "case": case}))
        for label, case in (("a", "trial 0"), ("b", "trial 0"), ("a", "trial 7"))
    ]
    store.write_json(tmp_path / "run.json", {"grid": "small", "cells": []})
    for _ in range(2):
        list_cells(tmp_path, cells)
    assert [entry["label"] for entry in documents.read_json(tmp_path / "run.json")["cells"]] == ["a", "b"]
    list_cells(tmp_path, cells[1:2], others=False)
    assert [entry["label"] for entry in documents.read_json(tmp_path / "run.json")["cells"]] == ["b"]


def test_cells_are_found_in_a_run_whatever_their_files_are_called(write: Write, tmp_path: Path) -> None:
    cell = load_study(str(write()), []).arms[0].cells[0]
    elsewhere = cell.model_copy(update={"dataset_options": {**cell.dataset_options, "path": "/data/blobs.npz"}})
    info = {"grid": "small", "cells": [{"id": "0" * 16, "label": "a", "settings": {"unknown": 1}}]}
    store.write_json(tmp_path / "run.json", info)
    list_cells(tmp_path, [PlannedCell("1" * 16, elsewhere)])
    find = listed_ids(tmp_path)
    assert find(cell) == find(cell.model_copy(update={"case": "another"})) == "1" * 16
    assert find(cell.model_copy(update={"seed": 7})) is None


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's imports use what SQLAlchemy is about to remove
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
