"""One method of a league against all others, and the matrix of wins."""

import numpy as np
import pytest
from scipy import stats

from reports.league import method as league_method
from reports.league.method import method_section, wins
from reports.league.rule import by_case, ranked
from reports.reading.load import GM, PM, Figure, Store, load
from reports.statistics.best import outcomes
from tests.reports import conftest
from tests.reports.conftest import cells_of, change_run, name_cases, write_store

WEIGHTS = {"case 1.0": 0.5, "case 0.5": 0.25, "case 0.1": 0.25}
METHODS = ("fedavg", "local", "finetune", "ditto", "scd", "weak")


@pytest.fixture(scope="module")
def league(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Three tasks of two families; `again` is Ditto under a second name, `weak` is far below all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(conftest.LEVELS, "finetune", (0.85, 0.89))
        patch.setitem(conftest.LEVELS, "weak", (0.3, 0.3))
        run = write_store(tmp_path_factory.mktemp("league"), methods=METHODS, alphas=(1.0, 0.5, 0.1), seeds=5)
    twins = [cell for cell in cells_of(run) if cell["label"] == "ditto"]
    again = [{**cell, "label": "again", "settings": {**cell["settings"], "label": "again"}} for cell in twins]
    name_cases(change_run(run, cells=cells_of(run) + again))
    return by_case(load([run]))


def by_seed(store: Store, row: str) -> list[float]:
    """Each seed's own mean over tasks."""
    found = {task: store.scores(row, task, PM) for task in WEIGHTS}
    return [sum(weight * found[task][seed] for task, weight in WEIGHTS.items()) for seed in "01234"]


@pytest.mark.long
def test_differences_are_student_s_over_the_means_of_seeds(league: Store) -> None:
    """By SciPy; the smallest of four p values is multiplied by four, and a clone of the method is only named. Outcomes
    of all tasks are counted."""
    [pm, _] = method_section(league, "ditto").tables
    rows = dict(pm.rows)
    tests = {row: stats.ttest_rel(by_seed(league, "ditto"), by_seed(league, row)) for row in METHODS if row in rows}
    assert set(tests) == {"local", "finetune", "scd", "weak"}
    for row, test in tests.items():
        interval = test.confidence_interval()
        difference = np.mean(by_seed(league, "ditto")) - np.mean(by_seed(league, row))
        assert [entry.value for entry in rows[row][:3]] == pytest.approx([difference, interval.low, interval.high])
    ordered = sorted(tests, key=lambda row: tests[row].pvalue)
    adjusted = np.maximum.accumulate([min(1, (4 - k) * tests[row].pvalue) for k, row in enumerate(ordered)])
    for row, p in zip(ordered, adjusted, strict=True):
        assert rows[row][3].note == "<0.001" if p < 0.001 else rows[row][3].value == pytest.approx(p)
    assert rows.pop("again")[0].note == "= ditto"
    outcomes_by_row = {row: [entry.value for entry in entries[4:]] for row, entries in rows.items()}
    assert outcomes_by_row["weak"] == [3, 0, 0, 0]
    assert {sum(counts) for counts in outcomes_by_row.values()} == {3}


def test_what_is_not_trained_is_not_compared(league: Store) -> None:
    """FedAvg has no personalized models: a table and a picture of its generic one, beside those that train one."""
    section = method_section(league, "fedavg")
    assert section.points[0] == "PM: not compared (derived)."
    assert [table.id for table in section.tables] == ["method_gm"]
    assert {row for row, _ in section.tables[0].rows} == {"finetune", "ditto", "again", "scd", "weak"}
    [picture] = section.pictures
    assert b"finetune" in picture.svg
    assert b">local<" not in picture.svg


@pytest.mark.long
def test_the_picture_has_the_references_and_the_best_of_the_others(league: Store) -> None:
    picture = method_section(league, "scd").pictures[0].svg.decode()
    assert all(f">{name}<" in picture for name in ("scd", "local", "finetune", "[fedavg]"))
    means = {row: np.mean(list(league.scores(row, "case 0.1", PM).values())) for row in METHODS}
    best = max((row for row in METHODS if row not in ("scd", "fedavg")), key=lambda row: means[row])
    assert f"case 0.1 ({best})" in picture


def test_the_matrix_counts_wins_of_the_leading_methods(league: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the ranks, and the method asked for beside them; a clone stands where its first one does."""
    everyone = counts(league, PM)
    _, places = ranked(league, PM)
    assert list(everyone) == sorted(everyone, key=lambda row: -places[row].mean)
    assert [everyone[row]["weak"] for row in ("local", "scd")] == [3, 3]
    assert sum(everyone["weak"].values()) == 0
    monkeypatch.setattr(league_method, "_LEADING", 2)
    assert len(counts(league, PM)) == 2
    assert list(counts(league, PM, "weak")) == [*list(everyone)[:2], "weak"]
    assert "again" not in counts(league, GM, "again")


def counts(league: Store, figure: Figure, method: str | None = None) -> dict[str, dict[str, float]]:
    """The numbers of the table of wins, by row and column."""
    table = wins(league, figure, method)
    assert table is not None
    names = [column.name for column in table.columns]
    return {
        row: {name: entry.value or 0.0 for name, entry in zip(names, entries, strict=True)}
        for row, entries in table.rows
    }


def test_an_outcome_is_that_of_a_paired_test() -> None:
    """Of two methods: the t test of the differences of logits, with Bonferroni's correction."""
    noise = np.array([0.1, -0.2, 0.3, 0.0, -0.1])
    for shift in (0.2, 0.5, 1.0):
        logits = np.array([1.5 + noise, 1.5 - shift + noise[::-1]])
        task = 100 / (1 + np.exp(-logits))
        p = stats.ttest_rel(*logits).pvalue
        for comparisons in (1, 20):
            won = p < 0.05 / comparisons
            assert (outcomes(task, comparisons)[0][1] == "win") == won
            assert (outcomes(task, comparisons)[1][0] == "loss") == won


def test_less_than_the_margin_is_a_tie_and_one_seed_decides_nothing() -> None:
    """A gap of 0.1 to 0.3 points in every seed: surely there, and surely below half a point."""
    base = np.array([90.0, 91.0, 89.5, 90.5, 90.2])
    task = np.array([base, base - [0.2, 0.19, 0.21, 0.2, 0.2]])
    assert outcomes(task, 1)[0][1] == outcomes(task, 1)[1][0] == "tie"
    assert outcomes(task, 1, margin=0.05)[0][1] == "win"
    assert outcomes(task[:, :1], 1)[0][1] == "undecided"
