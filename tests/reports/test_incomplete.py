"""Reports of runs in which cells are missing or diverged: what is of fewer cells than its neighbours says so."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.results.results import load_run, tidy
from bench.results.summary import summary
from bench.store.store import EVALUATED
from reports.page.further_tests import OWN, by_unit, further_tests
from reports.page.page import write_report
from reports.pictures.headline import _measured
from reports.reading.load import PM, load
from reports.tables import cost, fairness
from tests.reports.conftest import cell_id

Writer = Callable[..., Path]


def test_a_method_that_lacks_a_task_is_not_ordered_by_the_others(store_writer: Writer, tmp_path: Path) -> None:
    """SCD has the highest accuracies, and on the task that it lacks all are lower."""
    missing = {("scd", 1.0, seed): "missing" for seed in range(2)}
    store = load([store_writer(tmp_path / "run", seeds=2, states=missing)])
    rows = list(_measured(store, PM))
    assert rows[0] == "scd"
    assert rows[-1] == "ditto"
    whole = load([store_writer(tmp_path / "whole", seeds=2)])
    assert list(_measured(whole, PM))[-1] == "scd"


@pytest.mark.long
@pytest.mark.parametrize(
    ("lacking", "drawn"), [({"fedavg": 1.0, "local": 0.1}, False), ({"fedavg": 1.0, "local": 1.0}, False), ({}, True)]
)
def test_a_report_of_methods_that_lack_tasks_is_made(
    lacking: dict[str, float], drawn: bool, store_writer: Writer, tmp_path: Path
) -> None:
    """Each lacks another one, or both the same: a picture without a point is left out, and none ends the report."""
    missing = {(method, alpha, seed): "missing" for method, alpha in lacking.items() for seed in range(2)}
    run = store_writer(tmp_path / "run", seeds=2, methods=("fedavg", "local"), alphas=(1.0, 0.1), states=missing)
    assert (write_report([run]).parent / "figures" / "tradeoff.png").exists() == drawn


def test_diverged_seeds_are_counted_where_a_target_or_clients_are_missed(store_writer: Writer, tmp_path: Path) -> None:
    states = {("ditto", 1.0, 0): "diverged", **{("scd", 1.0, seed): "diverged" for seed in range(3)}}
    store = load([store_writer(tmp_path / "run", alphas=(1.0,), states=states)])
    table = cost.cost_table(store, cost.curves(store)["PM"], {store.tasks[0]: 40.0})
    rows = dict(table.rows)
    assert {entry.note for entry in rows["ditto"][3:]} == {"(2/3)"}
    assert {entry.note for entry in rows["fedper"][3:]} == {""}
    assert [entry.note for entry in rows["scd"][3:]] == ["– (0/3)"] * 3
    by_client = dict(fairness.fairness_table(store, fairness.client_accuracies(store)).rows)
    assert [by_client[row][1].note for row in ("ditto", "fedper")] == ["(n=2 of 3)", ""]


def _with_others(folder: Path) -> None:
    """Give a cell an accuracy of 50 % on the tests of all other clients."""
    row = dict.fromkeys(EVALUATED, "") | {
        "round": 12, "metric": "pm", "on": "local", "mean": "train_size", "split": "others", "client": -1,
        "quantity": "accuracy", "value": 0.5,
    }  # fmt: skip
    pd.DataFrame([row]).to_csv(folder / "evaluated.csv", index=False)


def test_own_tests_are_of_the_seeds_that_have_further_ones_in_which_a_diverged_cell_guesses(
    store_writer: Writer, tmp_path: Path
) -> None:
    """Beside the tests of two seeds the mean of three would stand for another spread. One of ten classes, in all tests
    that the task has: a method is no better for the seeds that it lost."""
    states = {("ditto", 1.0, 1): "diverged"}
    run = store_writer(tmp_path / "run", alphas=(1.0,), methods=("ditto", "scd"), states=states)
    for cell in ("ditto-1-0", "scd-1-0", "scd-1-1"):
        _with_others(run / cell_id(cell))
    store = load([run])
    others, own = (by_unit(further_tests(store), "ditto", store.tasks[0], "pm", test) for test in ("others", OWN))
    assert others == pytest.approx({"0": 50, "1": 10})
    assert own == pytest.approx({"0": store.scores("ditto", store.tasks[0], PM)["0"], "1": 10})


def _leave_tests_alone(folder: Path) -> None:
    """Take the scores on validation samples out of a cell's tables."""
    for name in ("metrics", "clients"):
        table = pd.read_csv(folder / f"{name}.csv")
        table[table["split"] == "test"].to_csv(folder / f"{name}.csv", index=False)


def test_a_task_without_validation_data_stands_beside_one_that_has_some(store_writer: Writer, tmp_path: Path) -> None:
    """In `bench results`: the second task reports its last round, and the title says so."""
    run = store_writer(tmp_path / "run", methods=("ditto",))
    for seed in range(3):
        _leave_tests_alone(run / cell_id(f"ditto-0.1-{seed}"))
    ((title, table),) = summary(tidy(load_run(run)))
    assert "round: validation, on tasks without it the last, mean" in title
    assert [column for column in table.columns if column.endswith("PM")] == ["digits α=1 PM", "digits α=0.1 PM"]
    assert "-" not in table.loc["ditto"].tolist()


def test_seeds_without_the_chosen_round_are_not_averaged_with_those_that_have_it(
    store_writer: Writer, tmp_path: Path
) -> None:
    """As in the report, where the task reports the chosen round; the title counts them."""
    run = store_writer(tmp_path / "run", methods=("ditto",), alphas=(1.0,))
    _leave_tests_alone(run / cell_id("ditto-1-0"))
    ((title, table),) = summary(tidy(load_run(run)))
    assert "round: validation (1 cells without it are left out), mean" in title
    store = load([run])
    scores = store.scores("ditto", store.tasks[0], PM)
    assert scores.keys() == {"1", "2"}
    assert table.loc["ditto", "digits α=1 PM"].startswith(f"{sum(scores.values()) / 2:.2f} ± ")
