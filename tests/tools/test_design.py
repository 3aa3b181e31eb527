"""Simulated designs of a league: what is known of them without a simulation."""

from dataclasses import replace

import numpy as np
import pytest

from tests.reports.parts import parts
from tools.simulation import design
from tools.simulation.components import _deviations, components
from tools.simulation.coverage import luck
from tools.simulation.design import Design


def test_cells_are_those_of_all_trials_finals_and_results() -> None:
    assert Design(2, 8, 2, True, 5).cells == 2 * (8 * 2 + 6 + 5)
    assert Design(1, 0, 0, False, 5).cells == 5


def test_hours_are_counted_over_tasks_and_methods() -> None:
    assert design.hours(parts(0.1), Design(1, 0, 0, False, 9), 100) == pytest.approx(9 * 4 * 2.0 * 100 / 3600)


def test_no_design_costs_more_than_the_hours() -> None:
    for chosen in design.designs(1.0, parts(0.1), 10):
        assert design.hours(parts(0.1), chosen, 10) <= 1.0
        more = Design(chosen.draws, chosen.trials, chosen.tuning_seeds, chosen.finals, chosen.seeds + 1)
        assert design.hours(parts(0.1), more, 10) > 1.0


def test_without_noise_all_methods_are_told_apart() -> None:
    outcome = design.power(parts(1e-6), Design(3, 16, 1, False, 2), 5)
    assert outcome.decided == 1.0
    assert outcome.tiers == 6


def test_more_noise_makes_wider_intervals_and_tells_less_apart() -> None:
    quiet, loud = (design.power(parts(noise), Design(4, 16, 1, False, 2), 20) for noise in (0.05, 0.4))
    assert loud.half > 4 * quiet.half
    assert loud.decided < quiet.decided


def test_intervals_hold_the_luck_of_tuning() -> None:
    """Two trials, of which the better is drawn in three quarters of all draws: with one result noise apart, intervals
    of draws' means hold the true differences in nineteen of twenty leagues."""
    outcome = design.power(parts(0.1), Design(6, 2, 4, False, 1), 200)
    assert outcome.covered >= 0.9


def test_intervals_of_a_single_draw_do_not_hold_it() -> None:
    outcome = design.power(parts(0.1), Design(1, 2, 4, False, 40), 50)
    assert outcome.covered < 0.5


def test_fewer_trials_lose_and_the_budget_of_the_entries_loses_nothing() -> None:
    rng = np.random.default_rng(0)
    trials = rng.normal(size=8)
    values = {
        number: design.chosen_trials(rng, trials, 0.01, Design(1, number, 2, False, 1), 4000).mean()
        for number in (1, 2, 8)
    }
    assert values[1] == pytest.approx(trials.mean(), abs=0.06)
    assert values[1] < values[2] < values[8] <= trials.max()
    means = design.tuning_outcomes(parts(0.1), design.OF_ENTRIES).mean(axis=2)
    assert np.abs(means).max() < 0.02


def test_finals_correct_a_choice_that_noise_made() -> None:
    rng = np.random.default_rng(0)
    trials = np.array([0.0, 1.0])
    without, again = (
        design.chosen_trials(rng, trials, 2.0, Design(1, 6, 1, finals, 1), 4000).mean() for finals in (False, True)
    )
    assert again > without + 0.05


def test_tasks_are_the_first_of_each_family() -> None:
    fewer = design.with_tasks(parts(0.1), 2)
    assert fewer.families == ["one", "one", "two"]
    assert fewer.levels.shape == (3, 6)
    assert len(fewer.trials) == 3


def test_the_luck_of_tuning_has_the_variance_of_the_draws_less_that_of_their_seeds() -> None:
    """By hand: four draws of one method on each task, 1.5, 0.1, -0.4 and -1.2 times 0.1, of seven seeds each."""
    given = parts(0.1)
    outcomes = luck(np.random.default_rng(0), given, 7)
    expected = 0.01 * (1.5**2 + 0.1**2 + 0.4**2 + 1.2**2) / 3 - 0.01 / 7
    assert outcomes.var(axis=2) == pytest.approx(np.full(given.levels.shape, expected), rel=0.1)
    assert len(np.unique(outcomes[0, 0].round(9))) == 4
    assert outcomes.mean(axis=2) == pytest.approx(np.zeros(given.levels.shape), abs=1e-12)
    still = replace(given, draws=np.concatenate([given.draws[:, :-1], np.zeros((4, 1, 4))], axis=1))
    assert not luck(np.random.default_rng(0), still, 7)[:, -1].any()


def test_what_all_methods_share_in_a_seed_is_no_noise() -> None:
    """Three methods by hand: levels 1, 2 and 5, a seed's effect of 3 and -3 on all, and noise of the last one alone."""
    values = np.array([[4.0, -2.0], [5.0, -1.0], [8.5, 1.5]])
    assert _deviations(values) == pytest.approx(np.array([[0, 0], [0, 0], [0.5, -0.5]]))


@pytest.mark.parametrize("study", ["league_1_small", "league_2_small"])
def test_components_of_both_leagues_are_there(study: str) -> None:
    """Also without the methods that diverged in some cells of a task."""
    whole, steady = components(study), components(study, erratic=False)
    assert whole.levels.shape == whole.noise.shape == whole.seconds.shape == whole.draws.shape[:2]
    assert whole.draws.shape[2] == (0 if study == "league_1_small" else 4)
    assert whole.levels.shape[1] > steady.levels.shape[1] > 1
    assert len(whole.families) == len(whole.trials) == len(whole.levels)
