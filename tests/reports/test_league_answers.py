"""A league's page from made-up leagues: what beats fine-tuning, what tuning is worth, and draws of tuning as units."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reports.league.answers import _Compared, _compared, _what_it_rests_on, answers
from reports.league.gain import Gains, TaskMeasure, gain_section, gains
from reports.league.page import _clients, _gains, write_league
from reports.league.rule import _family, by_case, ranked, task_weights
from reports.pictures.trends import sensitivity
from reports.reading.load import PM, Store, load
from reports.statistics.inference import LEVEL, Summary
from reports.statistics.reference import differences
from reports.tables.accuracy import main_table
from reports.tables.fairness import client_accuracies
from reports.tables.standings import Family
from reports.tables.table import Table
from sweeps.study_reader import load_study
from tests.reports import conftest
from tests.reports.conftest import cell_id, cells_of, change_run, change_status, name_cases, write_store

METHODS = ("finetune", "ditto", "scd", "fedavg")
DRAWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
RATES = ("0.05", "0.1", "0.2", "0.4")
"""Each draw chose another learning rate."""


def write(folder: Path, methods: tuple[str, ...] = METHODS, draws: list[list[int]] | None = None) -> Path:
    run = write_store(folder, seeds=8, methods=methods)
    name_cases(run)
    if draws is None:
        return run
    (run / "tuning.csv").write_text("row,column,value,note\n", encoding="utf-8")
    return change_run(run, lambda cell: {"lr": float(RATES[cell["settings"]["seed"] // 2])}, draws=draws)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two leagues of draws, which each test copies; the second one with training alone, without which no gain is."""
    folder = tmp_path_factory.mktemp("leagues")
    write(folder / "tuned", draws=DRAWS)
    write(folder / "whole", (*METHODS, "local"), DRAWS)
    return folder


@pytest.fixture
def tuned(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "tuned", tmp_path / "tuned"))


@pytest.fixture
def whole(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / "whole", tmp_path / "whole"))


def table(section_of: Store, name: str, defaults: Store | None = None) -> Table:
    section = answers(section_of, defaults)
    return next(table for table in section.tables if table.id == name)


def clone(run: Path, row: str, name: str, *, trains: bool | None = None) -> Path:
    """A run beside `run` with the cells of one row under another name, which say or do not say to train PM."""
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    folder, cells = run.with_name(f"{run.name}_{name}"), []
    for cell in info["cells"]:
        if cell["label"] == row:
            settings = cell["settings"] | {"method": name, "label": name}
            copied = {"id": cell_id(name + cell["id"]), "label": name, "settings": settings}
            shutil.copytree(run / cell["id"], folder / copied["id"])
            (folder / copied["id"] / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
            change_status(folder / copied["id"], **({} if trains is None else {"derived": [] if trains else ["pm"]}))
            cells.append(copied)
    (folder / "run.json").write_text(json.dumps(info | {"cells": cells}), encoding="utf-8")
    return folder


def shown(section_of: Table) -> list[tuple[str, list[float | str | None]]]:
    return [(row, [entry.note or entry.value for entry in entries]) for row, entries in section_of.rows]


def values(shown: Table, row: str) -> list[float]:
    entries = next(entries for of_row, entries in shown.rows if of_row == row)
    return [entry.value for entry in entries if isinstance(entry.value, float)]


def test_a_method_beats_fine_tuning_where_its_interval_says_so(tuned: Path) -> None:
    """SCD's level is points above fine-tuning's: mean and interval are above 0, and the sentence counts it. On each
    task the leader is shown."""
    store = by_case(load([tuned]))
    mean, low, high = values(table(store, "beats"), "scd")
    means = {row: [np.mean([*store.scores(row, t, PM).values()]) for t in store.tasks] for row in METHODS}
    assert mean == pytest.approx(np.mean(np.subtract(means["scd"], means["finetune"])))
    assert low < mean < high
    assert mean - low == pytest.approx(high - mean)
    sentence, *carried = answers(store).points
    sure = [row for row in ("ditto", "scd") if values(table(store, "beats"), row)[1] > 0]
    assert sentence.startswith(f"{len(sure)} of 2 methods surely beat fine-tuning over all tasks")
    assert sorted(text.split()[0] for text in carried) == sure
    leaders = [(task, first.note) for task, (first, *_) in table(store, "for_which").rows]
    assert leaders == [(t, max(("ditto", "scd"), key=lambda row: means[row][k])) for k, t in enumerate(store.tasks)]


def test_tuning_is_worth_nothing_where_it_changed_nothing(tuned: Path, tmp_path: Path) -> None:
    """The default division has the same numbers, of some of the methods: others are not compared."""
    same = table(by_case(load([tuned])), "worth", by_case(load([write(tmp_path / "default", ("ditto", "fedavg"))])))
    assert {row for row, _ in same.rows} == {"ditto", "fedavg"}
    assert all(values(same, row)[0] == pytest.approx(0.0, abs=1e-9) for row, _ in same.rows)


def test_a_generic_model_under_several_names_counts_once(tuned: Path) -> None:
    """Clones have no spread between them, and widened every interval; one may say that it trains what it has."""
    alone = shown(table(by_case(load([tuned])), "needed"))
    clones = [clone(tuned, "fedavg", name) for name in ("afl", "fedprox")] + [
        clone(tuned, "fedavg", "cfl", trains=True)
    ]
    assert [row[0] for _, row in alone] == ["fedavg"] * 2
    assert shown(table(by_case(load([tuned, *clones])), "needed")) == alone
    renamed = shown(table(by_case(load([*clones, tuned])), "needed"))
    assert [(row, entries[1:]) for row, entries in renamed] == [(row, entries[1:]) for row, entries in alone]


def test_who_answers_with_the_generic_model_is_no_personalized_one(tuned: Path) -> None:
    """As CFL where it splits no cluster: on one of the tasks all clients of SCD have its generic model."""
    before = shown(table(by_case(load([tuned])), "needed"))
    for cell in cells_of(tuned):
        if (cell["label"], cell["settings"]["alpha"]) == ("scd", 0.1):
            for name in ("metrics", "clients"):
                path = tuned / cell["id"] / f"{name}.csv"
                rows = pd.read_csv(path, keep_default_na=False)
                generic = rows[rows["metric"] == "gm"]
                same = generic[generic["on"] == "local"] if name == "metrics" else generic
                pd.concat([generic, same.assign(metric="pm")]).to_csv(path, index=False)
    after = shown(table(by_case(load([tuned])), "needed"))
    assert [entries[1] for _, entries in before] == ["scd", "scd"]
    assert {row: entries[1] == "scd" for row, entries in after} == {"case 1.0": True, "case 0.1": False}


@pytest.mark.long
@pytest.mark.parametrize("first", [False, True])
def test_fine_tuning_under_another_name_is_fine_tuning(whole: Path, first: bool) -> None:
    """Whichever of the two entries is read first."""
    before, runs = by_case(load([whole])), [whole, clone(whole, "finetune", "apfl")]
    store = by_case(load(runs[::-1] if first else runs))
    for name in ("beats", "for_which"):
        assert shown(table(store, name)) == shown(table(before, name))
    expected, comparison = gains(before), gains(store)
    assert expected is not None
    assert comparison is not None
    assert comparison.gain.corrected == expected.gain.corrected


@pytest.mark.long
def test_tuning_is_worth_what_it_brings_methods(tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is no method, and a method under two names is one."""
    for row, level in (("ditto", 0.7), ("scd", 0.8)):
        monkeypatch.setitem(conftest.LEVELS, row, (0.7, level))
    defaults = write(tmp_path / "default")
    before = answers(by_case(load([tuned])), by_case(load([defaults])))
    monkeypatch.setitem(conftest.LEVELS, "centralized", (0.9, 0.95))
    bound = write(tmp_path / "bound", methods=("centralized",), draws=DRAWS)
    monkeypatch.setitem(conftest.LEVELS, "centralized", (0.5, 0.55))
    runs = [tuned, clone(tuned, "scd", "apfl"), bound]
    plain = [defaults, clone(defaults, "scd", "apfl"), write(tmp_path / "other", methods=("centralized",))]
    after = answers(by_case(load(runs)), by_case(load(plain)))
    worth = [next(shown(table) for table in section.tables if table.id == "worth") for section in (before, after)]
    assert worth[0] == worth[1]
    assert before.points[-1] == after.points[-1]
    assert "to the mean method (4 methods, 4 draws of tuning), most to ditto (+" in after.points[-1]


@pytest.mark.long
def test_the_page_of_a_league_of_draws_says_what_its_units_are(whole: Path, tmp_path: Path) -> None:
    """And it shows the setting of each draw; a league without draws says nothing of tuning."""
    defaults = write(tmp_path / "default")
    page = write_league([whole], tmp_path / "page", "test", None, [defaults])
    text = page.read_text(encoding="utf-8")
    assert text.find('<section id="short"') < text.find('<section id="answers"') < text.find('id="standing_pm"')
    for words in ("over draws of tuning, each with its own seeds", "Who beats fine-tuning?", "What is tuning worth?"):
        assert words in text
    assert "every method with the same budget of tuning." in text
    assert "untuned" not in text
    assert set(pd.read_csv(page.parent / "tables" / "worth.csv")["row"]) == set(METHODS)
    settings = (page.parent / "tables" / "settings.csv").read_text(encoding="utf-8").splitlines()
    rates = [re.search(r"lr=([0-9.]+)", line)[1] for line in settings if line.startswith("ditto,,settings,")]
    assert rates == [*RATES] * 2
    plain = write_league([defaults], tmp_path / "other", "test").read_text(encoding="utf-8")
    assert "every method with its defaults and one learning rate, untuned." in plain
    assert not any(words in plain for words in ('id="answers"', "budget of tuning", "draws of tuning"))


def test_a_task_without_a_case_has_the_name_of_its_data(tmp_path: Path) -> None:
    """And tasks that would have one name keep their whole ones."""
    run = write(tmp_path / "run", methods=("ditto",))
    change_run(run, lambda cell: {} if cell["settings"]["dataset"] == "digits" else {"case": ""})
    assert by_case(load([run])).tasks == ["synthetic", "case 0.1"]
    store = load([change_run(run, lambda _: {"case": "", "dataset": "digits"})])
    assert by_case(store).tasks == store.tasks


def test_who_surely_gains_is_said_by_the_intervals_that_stand_there() -> None:
    """Holm's p of the second is below 0.05, and its interval, corrected for both methods, holds 0."""
    corrected = {"ditto": Summary(5, -2.5, 0.5, -3.25, -1.77), "fedper": Summary(5, 0.62, 0.4, -0.003, 1.24)}
    measure = TaskMeasure(pd.DataFrame(), corrected, corrected)
    compared = Family({}, {}, {}, frozenset())
    said = " ".join(_gains(Gains(compared, measure, {"ditto": 0.001, "fedper": 0.04}, None)))
    assert said.startswith("1 of 2 methods gain")
    assert said.endswith("By these intervals 0 surely gain and 1 surely lose.")


def test_a_sure_sentence_names_the_tasks_that_carry_it_and_what_the_method_s_own_draws_say() -> None:
    """One of three tasks carries the first method, whose own draws are too unlike; the second is ahead on all tasks."""
    rng = np.random.default_rng(5)
    tasks = [np.vstack([np.zeros(5) + rng.normal(0, 0.3, (12, 5))]) for _ in range(3)]
    tasks[1][0], tasks[2][0] = [5.5, 4.0, 6.0, 4.5, 5.0], [0.2, 0.1, -0.1, 0.0, 0.3]
    for task in tasks:
        task[1] = 6 + np.array([-0.2, 0.1, 0.0, 0.2, -0.1])
    rows = [f"m{number}" for number in range(12)]
    compared = _Compared(rows, tasks, [np.zeros(5)] * 3, np.full(3, 1 / 3), [False] * 13, (0.05,) * 3)
    store = Store((), (), pd.DataFrame())
    store.__dict__["tasks"] = ["one", "two", "three"]
    one, all_three = (_what_it_rests_on(store, compared, row) for row in rows[:2])
    means = [task[0].mean() for task in tasks]
    assert one.startswith(f"m0 above fine-tuning: {means[0]:+.2f} on one, +5.00 on two, +0.10 on three points. ")
    assert "That it beats it is not sure without two. " in one
    by_draw = np.mean([task[0] for task in tasks], axis=0)
    low, high = stats.ttest_1samp(by_draw, 0).confidence_interval(1 - 0.05 / 12)
    assert one.endswith(f"corrected alike, is [{low:.2f}, {high:.2f}] and {'agrees' if low > 0 else 'does not agree'}.")
    assert "not sure" not in all_three
    assert all_three.endswith("and agrees.")


def test_the_settings_of_all_draws_are_one_row(whole: Path) -> None:
    """And ranks are those of equal settings in all draws, as the numbers are the same."""
    store = by_case(load([whole]))
    assert store.rows == [*METHODS, "local"]
    assert {cell.unit for cell in store.cells} == {"draw 1", "draw 2", "draw 3", "draw 4"}
    compared, places = ranked(store, PM)
    assert set(places) == {"finetune", "ditto", "scd", "local"}
    assert {len(units) for tasks in compared.scores.values() for units in tasks} == {4}
    assert list(sensitivity(load([whole]))) == []  # no curve over settings that are of one row
    change_run(whole, lambda cell: {"lr": 0.7} if cell["settings"]["seed"] == 3 else {})
    assert "ditto, lr=0.7" in load([whole]).rows, "two settings within a draw are two rows"


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


def test_a_method_that_diverges_in_a_draw_widens_no_other_interval(whole: Path) -> None:
    """Of differences from fine-tuning and of gains: as if it had no entry, but for corrections."""
    change_status(whole / cell_id("scd-0.1-3"), state="diverged")
    with_it = by_case(load([whole]))
    without = by_case(load([change_run(whole, cells=cells_of(whole, without="scd"))]))
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


def test_what_is_said_of_gains_is_what_was_done(whole: Path) -> None:
    """A row in brackets has Student's interval, and a division without tables of tuning no budget. Without training
    alone, or fine-tuning, nothing is said: a method may gain above the one that the other would beat."""
    store = by_case(load([whole]))
    comparison = gains(store)
    assert comparison is not None
    for missing in ("local", "finetune"):
        assert gains(replace(store, cells=tuple(cell for cell in store.cells if cell.row != missing))) is None
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
    (whole / "tuning.csv").unlink()
    [table] = gain_section(store, comparison).tables
    assert "each with its defaults and one learning rate, untuned." in table.how


@pytest.mark.long
def test_without_room_below_the_bound_a_sentence_stands_for_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`centralized` is first worse than training alone on both tasks, then better."""
    for level, tables in ((0.8, ["gain"]), (0.97, ["gain", "score"])):
        monkeypatch.setitem(conftest.LEVELS, "centralized", (level, level))
        run = write_store(tmp_path / str(level), methods=(*METHODS, "local", "centralized"))
        name_cases(run)
        store = by_case(load([run]))
        section = gain_section(store, gains(store))
        assert [table.id for table in section.tables] == tables
        assert ("no personalization score" in section.text) == ("score" not in tables)


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
