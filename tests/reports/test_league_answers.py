"""The first answers of a league's page: what beats fine-tuning, and what tuning is worth, from made-up leagues."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reports.league.answers import _Compared, _what_it_rests_on, answers
from reports.league.findings import _gains
from reports.league.gain import Gains, TaskMeasure, gains
from reports.league.page import write_league
from reports.league.rule import by_case
from reports.reading.load import PM, Store, load
from reports.statistics.inference import Summary
from reports.tables.standings import Family
from reports.tables.table import Table
from tests.reports import conftest
from tests.reports.conftest import cell_id, cells_of, change_run, change_status, name_cases, write_store

METHODS = ("finetune", "ditto", "scd", "fedavg")
DRAWS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def write(folder: Path, methods: tuple[str, ...] = METHODS, draws: list[list[int]] | None = None) -> Path:
    run = write_store(folder, seeds=8, methods=methods, alphas=(1.0, 0.1))
    name_cases(run)
    return change_run(run, **({"draws": draws} if draws else {}))


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(conftest.LEVELS, "finetune", conftest.LEVELS["fedavg"])
    return write(tmp_path / "tuned", draws=DRAWS)


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
    """SCD's level is points above fine-tuning's: mean and interval are above 0, and the sentence counts it."""
    store = by_case(load([tuned]))
    mean, low, high = values(table(store, "beats"), "scd")
    expected = [
        sum(store.scores("scd", task, PM).values()) / 4 - sum(store.scores("finetune", task, PM).values()) / 4
        for task in store.tasks
    ]
    assert mean == pytest.approx(sum(expected) / len(expected))
    assert low < mean < high
    assert mean - low == pytest.approx(high - mean)
    sentence, *carried = answers(store).points
    sure = [row for row in ("ditto", "scd") if values(table(store, "beats"), row)[1] > 0]
    assert sentence.startswith(f"{len(sure)} of 2 methods surely beat fine-tuning over all tasks")
    assert sorted(text.split()[0] for text in carried) == sure


@pytest.mark.long
def test_who_leads_on_a_task_is_shown_with_its_distance(tuned: Path) -> None:
    store = by_case(load([tuned]))
    shown = table(store, "for_which")
    assert [task for task, _ in shown.rows] == store.tasks
    for task, (first, *_) in shown.rows:
        means = {row: sum(store.scores(row, task, PM).values()) for row in ("ditto", "scd")}
        assert first.note == max(means, key=lambda row: means[row])


def test_tuning_is_worth_nothing_where_it_changed_nothing(tuned: Path, tmp_path: Path) -> None:
    """The default division has the same numbers, of some of the seeds; then two points less."""
    defaults = write(tmp_path / "default")
    store = by_case(load([tuned]))
    same = table(store, "worth", by_case(load([defaults])))
    assert {row for row, _ in same.rows} == set(METHODS)
    assert all(values(same, row)[0] == pytest.approx(0.0, abs=1e-9) for row in METHODS)


@pytest.mark.long
def test_only_methods_of_both_divisions_are_compared(tuned: Path, tmp_path: Path) -> None:
    defaults = by_case(load([write(tmp_path / "default", methods=("ditto", "fedavg"))]))
    assert {row for row, _ in table(by_case(load([tuned])), "worth", defaults).rows} == {"ditto", "fedavg"}


def test_a_generic_model_under_several_names_counts_once(tuned: Path) -> None:
    """Clones have no spread between them, and widened every interval; one may say that it trains what it has."""
    alone = shown(table(by_case(load([tuned])), "needed"))
    clones = [
        clone(tuned, "fedavg", "afl"),
        clone(tuned, "fedavg", "fedprox"),
        clone(tuned, "fedavg", "cfl", trains=True),
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


@pytest.mark.parametrize("first", [False, True])
def test_fine_tuning_under_another_name_is_fine_tuning(tuned: Path, first: bool) -> None:
    """Whichever of the two entries is read first."""
    whole = write(tuned.with_name("whole"), methods=(*METHODS, "local"), draws=DRAWS)
    before, runs = by_case(load([whole])), [whole, clone(whole, "finetune", "apfl")]
    store = by_case(load(runs[::-1] if first else runs))
    for name in ("beats", "for_which"):
        assert shown(table(store, name)) == shown(table(before, name))
    expected, comparison = gains(before), gains(store)
    assert expected is not None
    assert comparison is not None
    assert comparison.gain.corrected == expected.gain.corrected


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
def test_the_page_of_a_league_of_draws_says_what_its_units_are(tuned: Path, tmp_path: Path) -> None:
    page = write_league([tuned], tmp_path / "page", "test", None, [write(tmp_path / "default")])
    text = page.read_text(encoding="utf-8")
    assert text.find('<section id="short"') < text.find('<section id="answers"') < text.find('id="standing_pm"')
    assert "over draws of tuning, each with its own seeds" in text
    with open(page.parent / "tables" / "worth.csv", encoding="utf-8") as file:
        assert {row["row"] for row in csv.DictReader(file)} == set(METHODS)
    plain = write_league([write(tmp_path / "plain")], tmp_path / "other", "test").read_text(encoding="utf-8")
    assert 'id="answers"' not in plain
    assert "every method with its defaults and one learning rate, untuned." in plain
    assert "budget of tuning" not in plain
    assert "draws of tuning" not in plain


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
