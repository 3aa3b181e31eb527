"""No interval, p value or effect size rests on a spread that is smaller than half a test sample."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.reading.load import PM, Store, load
from reports.statistics.best import against_best, outcomes
from reports.statistics.inference import Bounded, bootstrap, iqm, least_deviation, p_value, paired, summarise
from reports.statistics.ranking import rank
from reports.statistics.reference import differences
from reports.tables.accuracy import aggregate_table, all_figures_table, comparison_table
from reports.tables.standings import family
from reports.tables.table import Table
from tests.reports.conftest import cell_id, write_store

SAMPLES = 447
HALF = 50 / SAMPLES


def misses(seeds: int, variance: float) -> float:
    """How often Student's interval misses, at worst: counts are k + 1 with some probability and else k, and the
    variance that it supposes at least is given in squares of a sample. Exact."""
    share = np.linspace(0.001, 0.999, 999)[:, None]
    ones = np.arange(seeds + 1)
    spread = np.sqrt(np.maximum(ones / seeds * (1 - ones / seeds) * seeds / (seeds - 1), variance))
    reach = stats.t.ppf(0.975, seeds - 1) * spread / math.sqrt(seeds)
    missed = np.abs(ones / seeds - share) > reach + 1e-12
    return float((stats.binom.pmf(ones, seeds, share) * missed).sum(axis=1).max())


def test_half_a_sample_is_the_least_spread_with_which_counts_of_two_neighbours_are_covered() -> None:
    half = (least_deviation(SAMPLES) * SAMPLES / 100) ** 2
    assert half == pytest.approx(1 / 4)
    assert max(misses(seeds, half) for seeds in range(2, 18)) <= 0.05
    assert max(misses(seeds, half) for seeds in range(18, 60)) <= 0.06
    assert max(misses(seeds, 1 / 6) for seeds in range(2, 60)) > 0.09
    assert max(misses(seeds, 1 / 12) for seeds in range(2, 60)) == pytest.approx(0.14, abs=0.003)
    assert max(misses(seeds, 0.0) for seeds in range(2, 60)) > 0.95


def test_two_seeds_whose_counts_repeat_by_chance() -> None:
    """62.4 samples more with either seed, but for the clients' weights: one pair of differences that nearly repeat."""
    x, y = {"0": 83.965, "1": 84.976}, {"0": 70.0, "1": 71.0}
    before, after = paired(x, y), paired(x, y, least=HALF)
    assert before.effect > 1000
    assert before.p < 0.001
    mean = (13.965 + 13.976) / 2
    assert after.difference == before.difference == pytest.approx(mean)
    assert after.effect == pytest.approx(mean / HALF)
    half = 12.7062 * HALF / math.sqrt(2)
    assert (after.low, after.high) == pytest.approx((mean - half, mean + half), abs=1e-4)
    assert after.p == pytest.approx(2 * stats.t.sf(mean / HALF * math.sqrt(2), 1))


@given(st.lists(st.integers(0, SAMPLES), min_size=2, max_size=6), st.integers(1, 9))
def test_a_spread_above_the_least_is_left_as_it_is(counts: list[int], seeds: int) -> None:
    values, least = [100 * count / SAMPLES for count in counts], least_deviation(SAMPLES, seeds)
    plain, floored = summarise(values), summarise(values, least=least)
    assert floored.std == plain.std
    assert floored.high - floored.low >= 2 * 1.96 * least / math.sqrt(len(counts))
    if plain.std >= least:
        assert floored == plain
        assert p_value(np.array(values), least) == p_value(np.array(values))


def test_differences_that_are_all_alike_have_a_p_value_where_the_samples_are_known() -> None:
    one_more = np.full(3, 100 / SAMPLES)
    assert math.isnan(p_value(one_more))
    assert p_value(one_more, HALF) == pytest.approx(2 * stats.t.sf(2 * math.sqrt(3), 2))
    assert p_value(np.zeros(3), HALF) == 1


def test_methods_one_sample_apart_in_all_seeds_are_not_sure_to_be_apart() -> None:
    """Three methods with 30, 29 and 28 of 40 samples right in each of three seeds; without a floor all is sure."""
    tasks, least = [np.repeat([[75.0], [72.5], [70.0]], 3, axis=1)], [least_deviation(40)]
    assert [standing.verdict for standing in against_best(tasks)] == ["better", "worse", "worse"]
    assert [standing.verdict for standing in against_best(tasks, least=least)] == ["equivalent", "undecided", "worse"]
    assert [row[1] for row in outcomes(tasks[0], 3)] == ["win", "tie", "loss"]
    assert [row[1] for row in outcomes(tasks[0], 3, least=least[0])] == ["undecided", "tie", "undecided"]
    assert [(place.first, place.last) for place in rank(tasks, ["one"])] == [(1, 1), (2, 2), (3, 3)]
    assert [(place.first, place.last) for place in rank(tasks, ["one"], least=least)] == [(1, 2), (1, 3), (2, 3)]
    right = against_best([np.full((2, 3), [[100.0], [97.5]])], least=least)  # the spread of logits is finite
    assert [standing.verdict for standing in right] == ["undecided", "undecided"]
    assert math.isfinite(right[1].low)
    by_sample = differences([tasks[0][1:]], [tasks[0][0]], np.ones(1), least=least)
    assert by_sample.error == pytest.approx(least_deviation(40) / math.sqrt(3))


def test_an_interquartile_mean_rests_on_half_of_the_runs() -> None:
    tasks = [np.full(4, 80.0), np.full(4, 90.0)]
    assert bootstrap(tasks, iqm) == Bounded(85, 85, 85)
    middle = bootstrap(tasks, iqm, least=[HALF, HALF])
    half = stats.t.ppf(0.975, 6) * HALF / math.sqrt(4)
    assert (middle.high - middle.low) / 2 == pytest.approx(half, rel=0.01)


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run of two seeds whose tables are the same: all counts repeat."""
    run = write_store(tmp_path_factory.mktemp("repeating") / "run", seeds=2, methods=("fedavg", "local", "ditto"))
    for method in ("fedavg", "local", "ditto"):
        for alpha in ("1", "0.1"):
            first, second = (run / cell_id(f"{method}-{alpha}-{seed}") for seed in (0, 1))
            for name in ("metrics.csv", "clients.csv"):
                shutil.copy(first / name, second / name)
    return load([run])


def widths(table: Table, low: str, high: str) -> list[float]:
    names = [column.name for column in table.columns]
    ends = [(entries[names.index(low)].value, entries[names.index(high)].value) for _, entries in table.rows]
    return [top - bottom for bottom, top in ends if bottom is not None and top is not None]


def test_no_table_has_an_interval_of_no_width(repeating: Store) -> None:
    tables = (all_figures_table(repeating), comparison_table(repeating), aggregate_table(repeating))
    for table in tables:
        of_table = widths(table, "95 % low", "95 % high")
        assert len(of_table) > 2
        assert min(of_table) > 0.1
    compared = tables[1]
    effects = [entries[-3].value for _, entries in compared.rows]
    assert all(effect is not None and abs(effect) < 1e4 for effect in effects)
    group = family(repeating, repeating.tasks, PM)
    assert all(standing.high > standing.low for standing in group.standings.values())


def test_the_samples_are_those_that_the_models_were_tested_on(repeating: Store, tmp_path: Path) -> None:
    clients = repeating.of("fedavg", repeating.tasks[0])[0].view.table("clients")
    last = clients[(clients["metric"] == "pm") & (clients["split"] == "test") & (clients["round"] == 12)]
    assert repeating.least(repeating.tasks[0], "local") == least_deviation(int(last["samples"].sum()))
    failed = write_store(
        tmp_path / "run", seeds=1, methods=("local",), alphas=(1.0,), states={("local", 1.0, 0): "failed"}
    )
    assert load([failed]).least(load([failed]).tasks[0], "local") == 0
