"""A trial never reads the test split."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.data import Dataset
from bench.federation.cell_data import load_dataset, load_partition
from bench.plugin import DATASETS
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.settings import Settings
from sweeps.study_reader import load_study
from tests.sweeps.conftest import Write

OPTIONS = Options(device="cpu", executor="sequential")
RESULTS = ("metrics.csv", "clients.csv", "ledger.csv", "partition.json")


@DATASETS.register("unreadable_tests")
def unreadable_tests(**options: object) -> Dataset:
    """A file's data set without what its test part holds: whoever looks there fails.

    The samples go once the data set is made, as one that lacks them is refused.
    """
    whole: Dataset = DATASETS.get("npz")(**options)
    unreadable = replace(whole)
    object.__setattr__(unreadable, "x", whole.x[: whole.n_train])
    object.__setattr__(unreadable, "y", np.where(np.arange(len(whole.y)) < whole.n_train, whole.y, 10**9))
    return unreadable


@pytest.mark.long
def test_without_a_readable_test_split_a_trial_has_the_same_bytes(write: Write, arrays: Path, tmp_path: Path) -> None:
    for method in ("fedprox", "ditto"):  # a generic and a personalized model of their own
        (cell, _) = load_study(str(write(grid={"methods": [method]})), []).arms[0].cells
        blind = _blind(cell)
        for settings, folder in ((cell, "whole"), (blind, "blind")):
            status = run_cell(settings, tmp_path / method / folder, OPTIONS)
            assert (status.state, status.reason) == ("done", "")
        for name in RESULTS:
            assert (tmp_path / method / "blind" / name).read_bytes() == (
                tmp_path / method / "whole" / name
            ).read_bytes()
        metrics = (tmp_path / method / "blind" / "metrics.csv").read_text()
        assert ",validation,accuracy," in metrics
        assert ",test," not in metrics


def test_a_reported_cell_does_read_it(write: Write, tmp_path: Path) -> None:
    (arm,) = load_study(str(write()), []).arms
    (cell,) = arm.reported({}, [3])
    assert "IndexError" in run_cell(_blind(cell), tmp_path / "blind", OPTIONS).reason
    assert run_cell(cell, tmp_path / "whole", OPTIONS).state == "done"
    assert ",test,accuracy," in (tmp_path / "whole" / "metrics.csv").read_text()


def test_a_trial_trains_and_validates_on_what_an_honest_cell_does(write: Write) -> None:
    (cell, _) = load_study(str(write()), []).arms[0].cells
    dataset = load_dataset(cell, Path("data"))
    tuning, honest = (load_partition(cell.model_copy(update={"protocol": p}), dataset) for p in ("tuning", "honest"))
    for mine, its in zip((*tuning.train, *tuning.validation), (*honest.train, *honest.validation), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert sum(map(len, tuning.test)) + len(tuning.global_test) == 0
    assert sum(map(len, honest.test)) > 0
    assert len(honest.global_test) > 0


def test_a_trial_may_train_on_parts_of_the_official_test_split_that_are_dealt_out(write: Write, tmp_path: Path) -> None:
    (cell, _) = load_study(str(write()), []).arms[0].cells
    changed = cell.model_copy(update={"partition_options": {"shares": [0.5, 0.2, 0.3]}})
    assert run_cell(changed, tmp_path / "trial", OPTIONS).reason == ""
    assert ",test," not in (tmp_path / "trial" / "metrics.csv").read_text()
    sizes = json.loads((tmp_path / "trial" / "partition.json").read_text())
    whole = len(load_dataset(cell, Path("data")).y)
    assert abs(sum(sizes["n_train"]) - 0.5 * whole) < cell.clients
    assert abs(sum(sizes["n_validation"]) - 0.2 * whole) < cell.clients


def _blind(cell: Settings) -> Settings:
    return cell.model_copy(update={"dataset": "unreadable_tests"})
