"""Coverage of what a league's page prints, simulated with the fitted components of a design.

`python -m tools.simulation.coverage --repeats 200` prints the table of docs/lab-notes.md for league-2's design: four
draws of eight trials on one seed each, seven result seeds in a draw. Beside the entries' methods stand a clone of the
first, whose truth is the same and whose noise and luck are its own, an entry of noise, which guesses, and an erratic
entry, which diverges on the last task in some cells: with the setting of a draw in any share of them.

With `--residuals` a draw of a method is its level plus one of the entries' own deviations of that method on that task,
with a random sign, and nothing is made of them: methods that are noisy on one task, and what is far from normal, are as
they were seen. With four draws of an entry that is a hard test: four times the same deviation is no rare sample.

With `--equal` all methods but the entry of noise are truly equal: the hardest case, for which rank intervals and what
is corrected for the choice of a leader are made. Their noise and luck stay as unequal as they are.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from bench.data import Floats
from bench.rng import generator
from reports.statistics import ranking
from reports.statistics.inference import LEVEL
from reports.statistics.reference import Differences, differences
from tools.simulation.components import Components, components
from tools.simulation.design import Design, league

LEAGUE_2 = Design(draws=4, trials=8, tuning_seeds=1, finals=False, seeds=7)
_MANY = 2000  # draws from which the truth is taken
_CLASSES = 10
_GUESTS = 3  # the last methods: clone, noise, erratic
_OUTCOMES = 2000  # of the luck of tuning


@dataclass(frozen=True)
class Coverage:
    """Shares of simulated leagues, or of methods in them, that hold.

    Attributes:
        pairs: leagues in which the simultaneous intervals of all pairs hold the true differences.
        width: the median half width of those intervals, in logits.
        ranks: leagues in which all rank intervals hold the true ranks.
        gains: leagues in which all corrected gains over a reference hold the true ones.
        winner: leagues in which the corrected gain of the method that leads holds; `alone`: its own interval.
        each: methods whose gain by itself holds.
        clone: leagues in which a clone's rank interval overlaps that of the method that it is.
        noise: leagues in which an entry of noise has a rank interval that holds the last rank.
        by_task: leagues in which all corrected gains on a single task hold, the mean over the tasks; `least`: on the
            task where they hold least often.
    """

    pairs: float
    width: float
    ranks: float
    gains: float
    winner: float
    alone: float
    each: float
    clone: float
    noise: float
    by_task: float
    least: float


def with_guests(parts: Components) -> Components:
    """The components with a clone of the first method, an entry of noise and what an erratic one is when it does not
    diverge, the first method again, as the last three."""
    guess = np.full((len(parts.levels), 1), special.logit(1 / _CLASSES))
    levels = np.hstack([parts.levels, parts.levels[:, :1], guess, parts.levels[:, :1]])
    usual = np.median(parts.noise, axis=1, keepdims=True)
    noise = np.hstack([parts.noise, parts.noise[:, :1], usual, parts.noise[:, :1]])
    trials = [[*task, task[0], guess[0], task[0]] for task in parts.trials]
    seconds, first = np.hstack([parts.seconds, parts.seconds[:, :_GUESTS]]), parts.draws[:, :1]
    draws = np.concatenate([parts.draws, first, np.zeros_like(first), first], axis=1)
    return Components(levels, noise, trials, parts.families, seconds, draws)


def equal(parts: Components) -> Components:
    """The components with the same level of all methods on a task, their mean, and the noise and luck of each."""
    levels = np.broadcast_to(parts.levels.mean(axis=1, keepdims=True), parts.levels.shape)
    return replace(parts, levels=levels)


def luck(rng: np.random.Generator, parts: Components, seeds: int) -> Floats:
    """Outcomes of tuning, `[tasks, methods, outcomes]`, as the draws of the entries deviate from a method's mean.

    Their variance is that of a method's draws on a task, less what the seeds of a draw explain; their shape is that of
    all methods' draws together, heavy tails included. The mean of a method's outcomes is 0.
    """
    count = parts.draws.shape[2]
    variance = np.square(parts.draws).sum(axis=2) / (count - 1)
    spread = np.sqrt(variance)[..., None]
    shape = (parts.draws / np.where(spread > 0, spread, 1))[spread[..., 0] > 0].ravel() * np.sqrt(count / (count - 1))
    scale = np.sqrt(np.maximum(0.0, variance - np.square(parts.noise) / seeds))
    outcomes = scale[..., None] * rng.choice(shape, (*scale.shape, _OUTCOMES))
    return np.asarray(outcomes - outcomes.mean(axis=2, keepdims=True))


def resampled(rng: np.random.Generator, parts: Components, draws: int) -> list[Floats]:
    """Accuracies in percent of every task, `[methods, draws]`: levels and the entries' deviations with random signs.

    Deviations are from a mean of few, so that they are enlarged to have the variance that they estimate.
    """
    count = parts.draws.shape[2]
    size = (*parts.levels.shape, draws)
    deviations = np.take_along_axis(parts.draws, rng.integers(count, size=size), axis=2) * rng.choice((-1, 1), size)
    return list(100 * special.expit(parts.levels[..., None] + deviations * np.sqrt(count / (count - 1))))


def diverging(rng: np.random.Generator, tables: Sequence[Floats], design: Design) -> tuple[list[Floats], list[bool]]:
    """Let the last method diverge on the last task: in a share of a draw's cells that differs from draw to draw.

    Returns:
        The tables, and of each method whether it diverged in some cells and not in others.
    """
    *others, last = tables
    cells = np.asarray(rng.binomial(design.seeds, rng.uniform(size=last.shape[1])))
    share, last = cells / design.seeds, last.copy()
    last[-1] = share * 100 / _CLASSES + (1 - share) * last[-1]
    erratic = bool(0 < cells.sum() < design.seeds * len(cells))
    return [*others, last], [False] * (len(last) - 1) + [erratic]


def coverage(parts: Components, design: Design, repeats: int, *, residuals: bool = False) -> Coverage:
    """Simulate leagues of a design, with guests, and count what holds. The reference of gains is the first method.

    Args:
        parts: levels and noise, with guests.
        design: how many draws there are, and seeds of each.
        repeats: leagues.
        residuals: draws are `resampled`; else they have `luck` and noise that were fitted.
    """
    rng = generator("simulate", "coverage", *vars(design).values())
    outcomes = luck(rng, parts, design.seeds)
    outcomes[:, -3] = outcomes[:, -1] = outcomes[:, 0]

    def tables_of(draws: int) -> tuple[list[Floats], list[bool]]:
        fitted = not residuals and league(rng, parts, outcomes, replace(design, draws=draws))
        return diverging(rng, list(fitted or resampled(rng, parts, draws)), design)

    weights = ranking.family_weights(parts.families)
    many, _ = tables_of(_MANY)
    logits = weights @ np.array([special.logit(task / 100).mean(axis=1) for task in many])
    by_task = np.array([task.mean(axis=1) - task[0].mean() for task in many])
    logits[:-1], by_task[:, -3] = (weights @ parts.levels)[:-1], 0.0  # noise and luck have a mean of 0 in logits
    rows = []
    for _ in range(repeats):
        tables, erratic = tables_of(design.draws)
        single = [_gains([task], np.ones(1), erratic, truth) for task, truth in zip(tables, by_task, strict=True)]
        rows.append(
            [*_held(tables, parts.families, erratic, logits, weights @ by_task), *(held.all() for _, _, held in single)]
        )
    shares = np.mean(np.array(rows, dtype=float), axis=0).tolist()
    of_tasks = shares[-len(many) :]
    return Coverage(*[*shares[: -len(many)], float(np.mean(of_tasks)), min(of_tasks)])


def _gains(
    tables: Sequence[Floats], weights: Floats, erratic: Sequence[bool], truth: Floats
) -> tuple[Differences, Floats, Floats]:
    """Gains over the first method, how far each is from the true one, and whether its corrected interval holds."""
    gains = differences([table[1:] for table in tables], [table[0] for table in tables], weights, erratic)
    apart = np.abs(gains.mean - truth[1:])
    return gains, apart, np.asarray(apart <= gains.half(LEVEL / len(apart)))


def _held(
    tables: Sequence[Floats], families: Sequence[str], erratic: Sequence[bool], truth: Floats, true_gains: Floats
) -> tuple[float, ...]:
    """Tell what holds in one league, in the order of `Coverage`."""
    mean, half = ranking.pair_intervals(tables, families, erratic)
    misses = np.abs((mean[:, None] - mean[None]) - (truth[:, None] - truth[None])) > half + 1e-12
    places = ranking.rank(tables, families, erratic)
    ranks = 1 + (truth[None] > truth[:, None] + 1e-12).sum(axis=1)
    gains, apart, corrected = _gains(tables, ranking.family_weights(families), erratic, true_gains)
    alone = apart <= gains.half(LEVEL)
    leader = int(gains.mean.argmax())
    first, clone, noise = places[0], places[-3], places[-2]
    pairs = np.triu_indices(len(mean), 1)
    return (
        not misses[pairs].any(),
        float(np.median(half[pairs])),
        all(place.first <= rank <= place.last for place, rank in zip(places, ranks, strict=True)),
        bool(corrected.all()),
        bool(corrected[leader]),
        bool(alone[leader]),
        float(alone.mean()),
        first.first <= clone.last and clone.first <= first.last,
        noise.last == len(mean),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=LEAGUE_2.seeds, help="result seeds of a draw")
    parser.add_argument("--equal", action="store_true", help="all methods are truly equal")
    parser.add_argument("--residuals", action="store_true", help="draws have the entries' own deviations")
    options = parser.parse_args(arguments)
    design = replace(LEAGUE_2, seeds=options.seeds)
    parts = components("league_2_small", erratic=False, first="finetune")
    whole = with_guests(equal(parts) if options.equal else parts)
    held = coverage(whole, design, options.repeats, residuals=options.residuals)
    print(f"| what should hold, {options.repeats} leagues | percent |\n|---|---:|")
    for name, share in (
        ("all pairs' differences at once", held.pairs),
        ("all rank intervals at once", held.ranks),
        ("all corrected gains at once", held.gains),
        ("all corrected gains on one task at once, mean over the tasks", held.by_task),
        ("all corrected gains on one task at once, the task where they hold least", held.least),
        ("the leader's corrected gain", held.winner),
        ("the leader's gain, its interval by itself", held.alone),
        ("a gain, its interval by itself", held.each),
        ("a clone's rank interval overlaps the method's", held.clone),
        ("noise may be last", held.noise),
    ):
        print(f"| {name} | {100 * share:.1f} |")
    print(f"\nMedian half width of a pair's interval: {held.width:.3f} logits.")


if __name__ == "__main__":
    main()
