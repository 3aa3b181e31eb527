"""Accuracy against trials, from the tables that an entry packs beside its budgets."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.results.cell_names import drawn, task_name
from bench.results.results import load_run
from reports.league.rule import by_case
from reports.league.trials import best_by_trials, trials_table
from reports.reading.load import Store, load
from tests.reports.conftest import change_run, name_cases, write_store

Trials = Sequence[float | None]
LOCAL: dict[float, Trials] = {1.0: (50, 40, 60), 0.5: (None, 70, 80), 0.1: (90, None, 70)}
"""By alpha; None: pruned. The order of tasks in `tuning.csv` is this one."""
FEDAVG: dict[float, Trials] = dict.fromkeys(LOCAL, (10, 20, 30))


def write_tables(run: Path, found: dict[float, Trials], draws: Sequence[int] = (0,)) -> None:
    """The tables as a sweep's report writes them, with numbers of two digits or more among the trials; those of each
    further draw find ten points more."""
    names = {cell.settings.alpha: task_name(cell.settings) for cell in load_run(run).cells}
    columns = [(drawn(names[alpha], draw), found[alpha], 10 * at) for alpha in found for at, draw in enumerate(draws)]
    head = ["row", "group", "column", "value", "spread", "mark", "derived", "note"]
    tables = {"tuning": [["mine", "", "task", "", "", "", "", name] for name, *_ in columns]}
    for at, (_, trials, more) in enumerate(columns):
        tables[f"trials_{at}"] = rows = []
        for number, value in enumerate(trials):
            best = value + more if value else ""
            rows += [[number, "", "GM", 99, "", "", "", ""], [number, "", "PM", best, "", "", "", ""]]
    for name, rows in tables.items():
        with open(run / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([head, *rows])


@pytest.fixture
def league(tmp_path: Path) -> Store:
    """Three entries; that of `ditto` has no tables of trials."""
    runs = []
    for method in ("local", "fedavg", "ditto"):
        runs.append(write_store(tmp_path / method, methods=(method,), alphas=tuple(LOCAL), seeds=2))
        name_cases(runs[-1])
    write_tables(runs[0], LOCAL)
    write_tables(runs[1], FEDAVG)
    return by_case(load(runs))


def test_the_best_so_far_is_averaged_by_families(league: Store) -> None:
    """A pruned trial finds nothing, and before a task's first accuracy there is no mean."""
    found = best_by_trials(league)
    assert list(found.index) == ["local", "fedavg"]
    assert list(found.columns) == [1, 2, 3]
    expected = [np.nan, 50 / 2 + (70 + 90) / 4, 60 / 2 + (80 + 90) / 4]
    assert found.loc["local"].tolist() == pytest.approx(expected, nan_ok=True)
    table = dict(trials_table(league, found).rows)
    assert [entry.note or entry.value for entry in table["local"]] == ["–", *expected[1:]]
    assert list(table) == ["local", "fedavg"]
    assert all(entry.derived for entry in table["fedavg"])


def test_the_best_so_far_of_each_draw_is_averaged_in_the_order_of_the_trials_numbers(tmp_path: Path) -> None:
    """The tenth comes after the second; without tables there is nothing."""
    run = change_run(write_store(tmp_path, methods=("local",), alphas=(1.0,), seeds=4), draws=[[0, 1], [2, 3]])
    assert best_by_trials(load([run])).empty
    write_tables(run, {1.0: [*range(50, 61), 40]}, draws=(1, 2))
    assert best_by_trials(load([run])).loc["local"].tolist() == [*range(55, 66), 65]
