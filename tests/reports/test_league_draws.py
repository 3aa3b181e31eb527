"""A league's page whose draws of tuning chose different settings, from made-up leagues."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from reports.league.answers import _compared, answers
from reports.league.compare import compare_leagues
from reports.league.gain import gain_section, gains
from reports.league.page import _clients, write_league
from reports.league.rule import _family, by_case, ranked, task_weights
from reports.league.trials import best_by_trials
from reports.pictures.trends import sensitivity
from reports.reading.load import PM, load
from reports.statistics.inference import LEVEL
from reports.statistics.reference import differences
from reports.tables.accuracy import main_table
from reports.tables.fairness import client_accuracies
from sweeps.study_reader import load_study
from tests.reports import conftest
from tests.reports.conftest import cell_id, cells_of, change_run, change_status, name_cases, write_store

DRAWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
METHODS = ("finetune", "ditto", "scd", "fedavg", "local")


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each draw chose another learning rate for each method."""
    monkeypatch.setitem(conftest.LEVELS, "finetune", conftest.LEVELS["fedavg"])
    run = write_store(tmp_path / "tuned", seeds=8, methods=METHODS)
    name_cases(run)
    (run / "tuning.csv").write_text("row,column,value,note\n", encoding="utf-8")
    return change_run(run, lambda cell: {"lr": [0.05, 0.1, 0.2, 0.4][cell["settings"]["seed"] // 2]}, draws=DRAWS)


def test_the_settings_of_all_draws_are_one_row(tuned: Path) -> None:
    """And ranks are those of equal settings in all draws, as the numbers are the same."""
    store = by_case(load([tuned]))
    assert store.rows == list(METHODS)
    assert {cell.unit for cell in store.cells} == {"draw 1", "draw 2", "draw 3", "draw 4"}
    compared, places = ranked(store, PM)
    assert set(places) == {"finetune", "ditto", "scd", "local"}
    assert {len(units) for tasks in compared.scores.values() for units in tasks} == {4}
    assert list(sensitivity(load([tuned]))) == []  # no curve over settings that are of one row


def test_two_settings_within_a_draw_are_two_rows(tuned: Path) -> None:
    change_run(tuned, lambda cell: {"lr": 0.7} if cell["settings"]["seed"] == 3 else {})
    assert "ditto, lr=0.7" in load([tuned]).rows


@pytest.mark.long
def test_the_page_answers_and_shows_the_setting_of_each_draw(tuned: Path, tmp_path: Path) -> None:
    defaults = write_store(tmp_path / "default", seeds=8, methods=METHODS)
    name_cases(defaults)
    page = write_league([tuned], tmp_path / "page", "a league", defaults=[defaults])
    text = page.read_text(encoding="utf-8")
    assert "What is tuning worth?" in text
    assert "every method with the same budget of tuning." in text
    assert "untuned" not in text
    assert "Who beats fine-tuning?" in text
    [settings] = (tmp_path / "page").rglob("settings.csv")
    rows = [line for line in settings.read_text(encoding="utf-8").splitlines() if line.startswith("ditto,,lr,")]
    assert [line.rpartition(",")[2] for line in rows] == ["0.05", "0.1", "0.2", "0.4"] * 2
    moved_pm, turned_pm, moved_gm, turned_gm = compare_leagues([defaults], [tuned])
    assert moved_pm.rows
    assert moved_gm.rows
    assert not turned_pm.rows  # the same accuracies
    assert not turned_gm.rows


def test_who_loses_counts_the_clients_of_diverged_cells(tmp_path: Path) -> None:
    """By hand: they have 10 %, and lose where training alone gets more right; a method does not gain by diverging."""
    states = {("ditto", 0.1, seed): "diverged" for seed in range(3)}
    run = write_store(tmp_path / "run", seeds=4, methods=("ditto", "local"), states=states)
    name_cases(run)
    store = by_case(load([run]))
    clients = client_accuracies(store).query("task == 'case 0.1'").set_index(["row", "seed", "client"])
    alone = clients["accuracy"]["local"]
    losing = [
        clients["accuracy"]["ditto", "3", client] < accuracy if seed == "3" else accuracy > 10
        for (seed, client), accuracy in alone.items()
    ]
    [section] = _clients(store)
    [(row, entries)] = section.tables[0].rows
    at = [column.name for column in section.tables[0].columns].index("case 0.1")
    assert row == "ditto"
    assert entries[at].value == pytest.approx(100 * sum(losing) / len(losing))


def test_a_method_that_diverges_in_a_draw_widens_no_other_interval(tuned: Path) -> None:
    """Of differences from fine-tuning and of gains: as if it had no entry, but for corrections."""
    change_status(tuned / cell_id("scd-0.1-3"), state="diverged")
    with_it = by_case(load([tuned]))
    without = by_case(load([change_run(tuned, cells=cells_of(tuned, without="scd"))]))
    errors = []
    for store in (with_it, without):
        compared = _compared(store)
        assert compared is not None
        at = compared.rows.index("ditto")
        errors.append([compared.on().error[at], *(compared.on(task).error[at] for task in (0, 1))])
    assert errors[0] == pytest.approx(errors[1])
    assert ranked(with_it, PM)[0].erratic == {"scd"}
    comparison = gains(with_it)
    assert comparison is not None
    above = {row: with_it.units(row, PM) for row in ("ditto", "finetune", "local")}
    best = {task: max(("local", "finetune"), key=lambda row: above[row][task].mean()) for task in with_it.tasks}
    tables = [(above["ditto"][task] - above[best[task]][task]).to_numpy()[None] for task in with_it.tasks]
    alone = differences(tables, [np.zeros(4) for _ in tables], task_weights(with_it, with_it.tasks))
    assert comparison.gain.means["ditto"].high - alone.mean[0] == pytest.approx(alone.half(LEVEL)[0])


@pytest.mark.long
def test_nothing_is_said_of_gains_without_both_references(tuned: Path) -> None:
    """Above FedAvg with fine-tuning alone a method may gain that training alone would beat."""
    whole = by_case(load([tuned]))
    assert gains(whole) is not None
    cells = cells_of(tuned)
    for missing in ("local", "finetune"):
        change_run(tuned, cells=cells)
        store = by_case(load([change_run(tuned, cells=cells_of(tuned, without=missing))]))
        assert gains(store) is None


def test_what_is_said_of_gains_is_what_was_done(tuned: Path) -> None:
    """A row in brackets has Student's interval, and a division without tables of tuning no budget."""
    store = by_case(load([tuned]))
    comparison = gains(store)
    assert comparison is not None
    assert "4 draws of tuning, each the mean of up to" in main_table(store).caption
    weights = task_weights(store, store.tasks)
    units = {row: store.units(row, PM) for row in ("fedavg", "local", "finetune")}
    best = {task: max(("local", "finetune"), key=lambda row: units[row][task].mean()) for task in store.tasks}
    above = sum(w * (units["fedavg"][t] - units[best[t]][t]) for t, w in zip(store.tasks, weights, strict=True))
    expected = stats.ttest_1samp(above, 0).confidence_interval()
    measured = comparison.gain.means["fedavg"]
    assert (measured.low, measured.high) == pytest.approx((expected.low, expected.high))
    assert "fedavg" not in comparison.gain.corrected
    [table] = gain_section(store, comparison).tables
    assert "all methods with a corrected interval determine together; of other rows Student's" in table.how
    assert "each with the same budget of tuning." in table.how
    (tuned / "tuning.csv").unlink()
    [table] = gain_section(store, comparison).tables
    assert "each with its defaults and one learning rate, untuned." in table.how


def test_without_room_below_the_bound_a_sentence_stands_for_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`centralized` is first worse than training alone on both tasks, then better."""
    monkeypatch.setitem(conftest.LEVELS, "finetune", conftest.LEVELS["fedavg"])
    for level, tables in ((0.8, ["gain"]), (0.97, ["gain", "score"])):
        monkeypatch.setitem(conftest.LEVELS, "centralized", (level, level))
        run = write_store(tmp_path / str(level), methods=(*METHODS, "centralized"))
        name_cases(run)
        store = by_case(load([run]))
        section = gain_section(store, gains(store))
        assert [table.id for table in section.tables] == tables
        assert ("no personalization score" in section.text) == ("score" not in tables)


@pytest.mark.long
def test_trials_are_averaged_over_draws(tuned: Path) -> None:
    """By hand: the best so far of each draw, then their mean."""
    lines = ["row,column,value,note"]
    for task in ("digits case 0.1", "synthetic case 1.0"):
        alpha = task.rpartition(" ")[2]
        for draw in range(1, 5):
            lines.append(f'{len(lines)},task,,"{task} alpha={float(alpha):g}, draw {draw}"')
    (tuned / "tuning.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for at in range(8):
        values = [60 + at, 50, 70 + at]
        rows = [f"{trial},PM,{value}," for trial, value in enumerate(values)]
        (tuned / f"trials_{at}.csv").write_text("\n".join(["row,column,value,note", *rows]) + "\n", encoding="utf-8")
    best = best_by_trials(by_case(load([tuned])))
    assert best.loc["ditto"].tolist() == pytest.approx([63.5, 63.5, 73.5])


def test_families_are_named_as_data_are(tuned: Path) -> None:
    """Two files of arrays are two families, though both are data sets `npz`."""
    from reports.league.rule import data_families

    def of_a_file(cell: dict[str, Any]) -> dict[str, Any]:
        name = "photographs" if cell["settings"]["dataset"] == "digits" else "writing"
        return {"dataset": "npz", "dataset_options": {"name": name, "path": "x.npz"}}

    store = by_case(load([change_run(tuned, of_a_file)]))
    assert sorted(data_families(store, store.tasks)) == ["photographs", "writing"]


@pytest.mark.parametrize(("league", "families"), [
    ("league_1_small", {"digits": 10, "synthetic": 2}),
    ("league_2_small", {"digits": 6, "synthetic": 1, "watch": 1}),
    ("league_2_photos", {"mnist": 1, "cifar10-jpeg": 2}),
])  # fmt: skip
def test_each_league_has_its_families(league: str, families: dict[str, int]) -> None:
    arms = [arm for arm in load_study(league, ["methods=[fedavg]"]).arms if arm.draw <= 1]
    assert Counter(_family(arm.cells[0]) for arm in arms) == families


def test_the_answers_do_not_call_another_one_highest_where_fine_tuning_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(conftest.LEVELS, "finetune", (0.86, 0.97))
    run = write_store(tmp_path / "run", seeds=4, methods=METHODS)
    name_cases(run)
    store = by_case(load([run]))
    section = answers(store)
    assert "The highest mean of them has" in section.points[0]
    caption = next(table.caption for table in section.tables if table.id == "for_which")
    assert "below 0, fine-tuning leads" in caption
