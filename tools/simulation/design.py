"""Designs of a league: what some core-hours would tell apart, simulated with the variances of the shipped entries.

`python -m tools.simulation.design --hours 25` prints the table of docs/lab-notes.md. A design spends a method's cells
on independent draws of tuning, on the trials of each draw, and on result seeds with the settings that a draw chose. The
unit of every interval is a draw: the mean over its result seeds, so that the luck of tuning is in it. With a single
draw, as in league-1, the unit is a seed, and the luck of tuning is in no interval.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from bench.data import Floats
from bench.rng import generator
from reports.statistics import ranking
from tools.simulation.components import Components, components

LEAGUE_1 = "league_1_small"
"""The study whose entries the next league was designed by."""
FINALISTS, FINAL_SEEDS = 3, 2
"""The best trials run again on further seeds, as in a study (`sweeps.fair`)."""
_RESAMPLED = 2000
"""Draws of tuning from which the spread of its outcome is taken."""


@dataclass(frozen=True)
class Design:
    """One way to spend a method's cells on each task.

    Attributes:
        draws: independent draws of tuning.
        trials: trials of a draw; 0: the method's defaults, no tuning.
        tuning_seeds: seeds of each trial.
        finals: whether the best trials run again on further seeds before one is chosen.
        seeds: result seeds of a draw.
    """

    draws: int
    trials: int
    tuning_seeds: int
    finals: bool
    seeds: int

    @property
    def cells(self) -> int:
        """Cells of a method on one task."""
        again = FINALISTS * FINAL_SEEDS if self.finals else 0
        return self.draws * (self.trials * self.tuning_seeds + again + self.seeds)


OF_ENTRIES = Design(draws=1, trials=8, tuning_seeds=2, finals=True, seeds=5)
"""How the entries were computed."""


@dataclass(frozen=True)
class Power:
    """Power of a design: means over simulated leagues.

    Attributes:
        half: median half width of the simultaneous interval of a pair's difference, in points at the mean accuracy.
        tiers: number of tiers.
        decided: share of the pairs told apart whose true means are a point or more apart.
        covered: share of leagues in which all intervals of pairs hold the true differences.
        loss: points that the mean method loses by being tuned otherwise than the entries were.
    """

    half: float
    tiers: float
    decided: float
    covered: float
    loss: float


def with_tasks(parts: Components, most: int) -> Components:
    """The components of at most so many tasks of each data family, the first ones."""
    kept = [at for at, family in enumerate(parts.families) if parts.families[:at].count(family) < most]
    trials, families = [parts.trials[at] for at in kept], [parts.families[at] for at in kept]
    return Components(parts.levels[kept], parts.noise[kept], trials, families, parts.seconds[kept], parts.draws[kept])


def chosen_trials(rng: np.random.Generator, trials: Floats, noise: float, design: Design, size: int) -> Floats:
    """Tune `size` times and return the true value of the trial that is chosen, `[size]`.

    Args:
        trials: values that a trial may have, one of which is drawn for each trial.
        noise: standard deviation of a trial's value on one seed.
    """
    true = rng.choice(trials, (size, design.trials))
    seen = true + noise / design.tuning_seeds**0.5 * rng.normal(size=true.shape)
    if design.finals:
        again = true + noise / FINAL_SEEDS**0.5 * rng.normal(size=true.shape)
        last = np.sort(seen, axis=1)[:, -min(FINALISTS, design.trials)][:, None]
        both = (design.tuning_seeds * seen + FINAL_SEEDS * again) / (design.tuning_seeds + FINAL_SEEDS)
        seen = np.where(seen >= last, both, -np.inf)
    chosen: Floats = np.take_along_axis(true, seen.argmax(axis=1)[:, None], axis=1)[:, 0]
    return chosen


def tuning_outcomes(parts: Components, design: Design) -> Floats:
    """Deviations of tuned methods from their entries, by luck and budget: `[tasks, methods, draws of tuning]`, logits.

    They have the mean 0 under the budget of the entries. The values that new trials may have are those of an entry's
    eight trials, so neither better nor worse ones than these occur; their noise is that of result seeds.
    """
    rng = generator("simulate", "outcomes", *vars(design).values())
    outcomes = np.zeros((*parts.levels.shape, _RESAMPLED))
    for (task, method), noise in np.ndenumerate(parts.noise):
        trials = parts.trials[task][method]
        expected = chosen_trials(rng, trials, noise, OF_ENTRIES, _RESAMPLED).mean()
        outcomes[task, method] = chosen_trials(rng, trials, noise, design, _RESAMPLED) - expected
    return outcomes


def power(parts: Components, design: Design, repeats: int) -> Power:
    """Simulate leagues of a design and count what their rank intervals tell apart."""
    rng = generator("simulate", "design", *vars(design).values())
    outcomes = tuning_outcomes(parts, design)
    weights = ranking.family_weights(parts.families)
    truth = weights @ (parts.levels + outcomes.mean(axis=2))
    point = float(np.mean(special.expit(truth) * (1 - special.expit(truth))))  # of accuracy, for a logit
    differences = truth[:, None] - truth[None]
    apart = np.abs(differences) * point >= 0.01
    upper = np.triu(np.ones_like(apart), 1).astype(bool)
    rows = []
    for _ in range(repeats):
        tables = list(league(rng, parts, outcomes, design))
        mean, half = ranking.pair_intervals(tables, parts.families)
        seen = mean[:, None] - mean[None]
        held = bool((np.abs(seen - differences) <= half + 1e-12)[upper].all())
        decided = (np.abs(seen) > half)[upper & apart].mean()
        tiers = max(place.tier for place in ranking.rank(tables, parts.families))
        rows.append((100 * point * float(np.median(half[upper])), tiers, decided, held))
    half_width, tier, told, covered = np.mean(np.array(rows, dtype=float), axis=0)
    return Power(half_width, tier, told, covered, -100 * point * float((weights @ outcomes.mean(axis=2)).mean()))


def league(rng: np.random.Generator, parts: Components, outcomes: Floats, design: Design) -> Iterator[Floats]:
    """Accuracies in percent of every task, `[methods, units]`: means over a draw's seeds, or seeds of a single draw."""
    tasks, methods = parts.levels.shape
    drawn = rng.integers(outcomes.shape[2], size=(tasks, methods, design.draws))
    luck = np.take_along_axis(outcomes, drawn, axis=2)
    for task in range(tasks):
        noise = parts.noise[task][:, None, None] * rng.normal(size=(methods, design.draws, design.seeds))
        units = noise[:, 0] if design.draws == 1 else noise.mean(axis=2)
        yield 100 * special.expit(parts.levels[task][:, None] + luck[task] + units)


def hours(parts: Components, design: Design, methods: int) -> float:
    """Core-hours of a design for so many methods, all tasks; trials cost as much as result cells."""
    return design.cells * float(parts.seconds.mean(axis=1).sum()) * methods / 3600


def designs(most: float, parts: Components, methods: int) -> list[Design]:
    """Designs with as many result seeds as the core-hours allow, for each number of draws and way of tuning."""
    a_cell = hours(parts, Design(1, 0, 0, False, 1), methods)
    chosen = []
    for draws, trials, seeds, finals in itertools.product((1, 2, 4, 8), (4, 8), (1, 2), (False, True)):
        without = Design(draws, trials, seeds, finals, 0)
        if (left := int((most / a_cell - without.cells) / draws)) >= 1:
            chosen.append(Design(draws, trials, seeds, finals, left))
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--hours", type=float, default=25.0, help="core-hours for all methods")
    parser.add_argument("--methods", type=int, default=90, help="methods that are computed")
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 5], help="tasks of a data family, at most")
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args(arguments)
    columns = ("tasks", "draws", "trials", "their seeds", "finals", "result seeds", "cells", "± points", "tiers")
    print(f"| {' | '.join((*columns, 'told apart', 'hold', 'lost'))} |")
    print(f"|{'---:|' * (len(columns) + 3)}")
    for most in options.tasks:
        parts = with_tasks(components(LEAGUE_1), most)
        for design in designs(options.hours, parts, options.methods):
            print(_row(parts, design, power(parts, design, options.repeats)), flush=True)


def _row(parts: Components, design: Design, outcome: Power) -> str:
    tasks, finals = len(parts.families), "yes" if design.finals else "no"
    spent = f"{tasks} | {design.draws} | {design.trials} | {design.tuning_seeds} | {finals} | {design.seeds}"
    told = f"{100 * outcome.decided:.0f} % | {100 * outcome.covered:.0f} % | {outcome.loss:.2f}"
    return f"| {spent} | {design.cells * tasks} | {outcome.half:.2f} | {outcome.tiers:.1f} | {told} |"


if __name__ == "__main__":
    main()
