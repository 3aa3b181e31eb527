"""Cases of a grid as an axis of reports: names, what they change, and what is said within each."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from bench.config.grid import load_grid
from bench.errors import UserError
from bench.runs.plan import PlannedCell
from bench.runs.run_folder import write_run
from reports.page.page import _summary
from reports.pictures import cases as maps
from reports.pictures import trends
from reports.reading.load import PM, load
from reports.statistics import inference
from reports.tables import accuracy, cases
from reports.tables.standings import standings_table
from tests.reports.conftest import CASE_METHODS, cells_of, change_run, write_cases, write_store

NAMES = ["plain", "attacked", "robust"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return _shaken(load(write_cases(tmp_path_factory.mktemp("cases"))))


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    return _shaken(load(write_cases(tmp_path_factory.mktemp("cases"), alphas=(1.0, 0.1))))


def _shaken(store):
    """The store with another draw in every cell, as cases are written with the same numbers."""
    figures = store.figures
    noise = {cell: 0.03 * np.random.default_rng(k).normal() for k, cell in enumerate(figures["cell"].unique())}
    return replace(store, figures=figures.assign(value=figures["value"] + figures["cell"].map(noise)))


def test_cases_are_columns_by_their_names_and_their_settings_make_no_rows(store, two_tasks):
    assert (store.rows, store.tasks, list(store.cases)) == (list(CASE_METHODS), NAMES, NAMES)
    assert "3 methods, 1 task in 3 cases, 36 cells" in _summary(store)
    assert two_tasks.tasks[:3] == ["digits, α=1, plain", "digits, α=0.1, plain", "digits, α=1, attacked"]
    assert "3 methods, 2 tasks in 3 cases, 72 cells" in _summary(two_tasks)
    note = accuracy.main_table(store).notes[1]
    assert note.startswith("Cases. plain: none of these; attacked: sign_flip share=0.2 factor=1; robust: ")


def test_methods_are_compared_within_each_case(store):
    rows = standings_table(store, (PM,)).rows
    assert [(row, entries[0].note) for row, entries in rows] == [(row, case) for case in NAMES for row in CASE_METHODS]
    assert {entries[0].note for _, entries in accuracy.comparison_table(store).rows} == set(NAMES)


@pytest.mark.parametrize(
    ("mean", "interval", "p", "verdict"),
    [
        (2, (1, 3), 0.01, "better"), (-2, (-3, -1), 0.01, "worse"), (2, (0.1, 4), 0.08, "undecided"),
        (0.1, (-0.2, 0.4), 0.4, "equivalent"), (0.1, (-0.2, 0.6), 0.4, "undecided"), (2, (np.nan, np.nan), np.nan, "–"),
    ],
)  # fmt: skip
def test_a_verdict_is_that_of_the_corrected_p_and_of_the_margin(mean, interval, p, verdict):
    some = inference.paired({"0": 1.0, "1": 3.0}, {"0": 0.0, "1": 1.0})
    compared = replace(some, difference=mean, low=interval[0], high=interval[1])
    assert accuracy._verdict(compared, p, margin=0.5) == verdict


def test_a_case_is_compared_with_the_reference_and_with_the_case_that_it_adds_to(store, tmp_path):
    assert cases.pairs_of_cases(store) == [("attacked", "plain"), ("robust", "plain"), ("robust", "attacked")]
    chosen = load(write_cases(tmp_path, seeds=1, reference="attacked"))
    assert cases.pairs_of_cases(chosen) == [("plain", "attacked"), ("robust", "attacked")]


def test_what_a_case_costs_is_student_s_interval_of_the_seeds_mean_differences(two_tasks):
    effects = cases.effects(two_tasks, PM)
    assert len(effects) == 9
    for effect in effects:
        of_case, reference = (
            [two_tasks.by_seed(effect.row, f"digits, α={alpha}, {case}", PM) for alpha in ("1", "0.1")]
            for case in (effect.case, effect.against)
        )
        pairs = list(zip(of_case, reference, strict=True))
        differences = np.array([np.mean([one[seed] - other[seed] for one, other in pairs]) for seed in "0123"])
        low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        assert effect.difference.n == 4
        expected = pytest.approx((differences.mean(), low, high))
        assert (effect.difference.mean, effect.difference.low, effect.difference.high) == expected


def test_cases_with_other_clients_are_other_tasks_by_their_names(tmp_path):
    of_clients = {"few": {}, "half": {"participation": 0.5, "model": "cnn"}}
    store = load(write_cases(tmp_path, seeds=1, settings=of_clients))
    assert store.tasks == ["few", "half"]
    assert store.cases == {}
    asked = load(write_cases(tmp_path / "b", seeds=1, settings=of_clients, reference="half"))
    assert list(asked.cases) == ["few", "half"]


def test_a_cell_of_two_cases_stands_in_both(tmp_path):
    """A case that sets another method's option leaves a method's cell as it is: one folder, two columns."""
    run = write_store(tmp_path / "a", seeds=2, alphas=(1.0,), methods=("fedavg", "ditto"), case="one")
    two = {"fedavg": {"case": "two"}, "ditto": {"case": "two", "hp": {"lam": 2.0}}}
    again = [cell | {"settings": cell["settings"] | two[cell["label"]]} for cell in cells_of(run)]
    store = load([change_run(run, cells=cells_of(run) + again, cases=["one", "two"])])
    assert store.tasks == ["one", "two"]
    scores = [store.scores("fedavg", task, PM) for task in store.tasks]
    assert len(scores[0]) == 2
    assert scores[0] == scores[1]


def test_rows_name_servers_and_channels_with_their_options(tmp_path):
    rules = [None, {"name": "trimmed_mean", "share": 0.1}, {"name": "trimmed_mean", "share": 0.2}]
    settings = {str(k): {"server": rule} for k, rule in enumerate(rules)}
    noise = [{"name": "clip", "norm": 1.0}, {"name": "gaussian", "noise": 2.0, "on": "each", "delta": 1e-5}]
    settings["3"] = {"channel": noise}
    runs = write_cases(tmp_path, seeds=1, settings=settings, cases=[])
    store = load(runs)
    assert store.rows[::3] == [
        "fedavg, no server rule, no channel",
        "fedavg, trimmed_mean share=0.1, no channel",
        "fedavg, trimmed_mean share=0.2, no channel",
        "fedavg, no server rule, clip norm=1 + gaussian noise=2 on=each delta=1e-05",
    ]


NAMELESS = {"epochs": 2, "server": {"name": "trimmed_mean", "share": 0.2}}
GRID = {"methods": ["fedavg", "ditto"], "alpha": 1.0, "cases": [{"name": "a, b"}, {"name": "b", "lr": 0.2}, NAMELESS]}


def test_a_grid_names_its_cases_and_its_reference_and_a_run_keeps_both(tmp_path):
    with pytest.raises(UserError, match=r"unknown case 'plane'.*Known: a, b, b, epochs=2"):
        load_grid({**GRID, "reference": "plane"})
    grid = load_grid({**GRID, "reference": "b", "vary": {"batch_size": [5, 10]}})
    assert grid.cases == ("a, b", "b", "epochs=2 trimmed mean 0.2")
    assert grid.cells == load_grid({**GRID, "vary": {"batch_size": [5, 10]}}).cells
    write_run(tmp_path, grid, [PlannedCell(f"{k:016x}", cell) for k, cell in enumerate(grid.cells)])
    content = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (content["cases"], content["reference"]) == (list(grid.cases), "b")
    store = load([tmp_path])
    assert list(store.cases) == list(grid.cases)
    assert store.rows == [f"{method}, batch_size={size}" for size in (5, 10) for method in ("fedavg", "ditto")]


def test_the_heat_map_has_each_mean_with_its_interval_and_a_frame_for_the_best(store, drawn):
    [picture] = maps.heat_maps(store, {})
    texts = {text.get_text() for axis in drawn[0].axes for text in axis.texts}
    for row in store.rows:
        units = list(store.scores(row, "attacked", PM).values())
        share = np.array(units).mean() / 100
        half = stats.sem(units) * stats.t.ppf(0.975, len(units) - 1) / 100 / (share * (1 - share))
        low, high = 100 * special.expit(special.logit(share) + np.array([-half, half]))
        assert {f"{100 * share:.1f}", f"{low:.1f}–{high:.1f}"} <= texts
    assert [len(axis.patches) for axis in drawn[0].axes] == [len(NAMES)] * 2
    assert picture.name == "cases"
    success = {("ditto", "attacked", "pm"): {"0": 40.0, "1": 60.0}}
    assert [picture.name for picture in maps.heat_maps(store, success)] == ["cases", "success"]
    assert [label.get_text() for label in drawn[2].axes[0].get_xticklabels()] == ["attacked"]


@pytest.mark.long
def test_accuracy_is_drawn_against_the_share_of_attackers_only_where_three_shares_are(store, tmp_path, drawn):
    assert list(trends.trends(store, {})) == []
    shares = {f"{share}": {"attack": {"name": "sign_flip", "share": share, "factor": 1.0}} for share in (0.4, 0.1)}
    several = load(write_cases(tmp_path, seeds=2, settings={"plain": {}, **shares}))
    [picture] = trends.trends(several, {("ditto", "0.4", "pm"): {"0": 50.0}})
    assert picture.name == "share_sign_flip"
    assert len(drawn[0].axes) == 3  # two accuracies and the success
    ditto = drawn[0].axes[1].lines[2]
    assert list(ditto.get_xdata()) == [0.0, 0.1, 0.4]
    expected = [np.mean(list(several.scores("ditto", case, PM).values())) for case in ("plain", "0.1", "0.4")]
    assert list(ditto.get_ydata()) == pytest.approx(expected)


def test_accuracy_is_drawn_against_epsilon_with_what_has_no_noise_at_the_end(tmp_path, drawn):
    noise = [[{"name": "clip", "norm": 1.0}, {"name": "gaussian", "noise": float(k), "on": "each"}] for k in (1, 2)]
    store = load(
        write_cases(tmp_path, seeds=1, settings={"none": {}, "1": {"channel": noise[0]}, "2": {"channel": noise[1]}})
    )
    worth = store.figures["task"].map({"none": np.nan, "1": 8.0, "2": 2.0})
    [picture] = trends.trends(replace(store, figures=store.figures.assign(epsilon_client=worth)), {})
    assert picture.name == "epsilon_client"
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["2", "8", "none"]
    expected = [np.mean(list(store.scores("ditto", case, PM).values())) for case in ("2", "1", "none")]
    assert list(drawn[0].axes[1].lines[2].get_ydata()) == pytest.approx(expected)
