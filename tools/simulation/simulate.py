"""Simulations of what the intervals and tests of a report cover.

`python -m tools.simulation.simulate` prints the table of docs/lab-notes.md.

Accuracies are drawn around 90 % on the logit scale: a level per task, a level per seed that all methods share (they are
paired), and each method's own noise, by default of 0.7 percentage points in one method, 1 point in a difference.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from bench.data import Floats
from bench.rng import generator
from reports.statistics import best, inference, ranking
from reports.tables import fairness
from tools.simulation import noise

METHODS = (5, 20, 70)
SEEDS = (3, 5, 10)
_LEVEL = float(special.logit(0.9))
_POINT = _LEVEL - float(special.logit(0.89))
_NOISE = 0.7 * _POINT
_LEVELS = (60, 80, 90, 95)


@dataclass(frozen=True)
class Rates:
    """Shares of simulated tables.

    Attributes:
        false: methods are equal, and one is called worse than the best, or better.
        uneven: the same with standard deviations that differ up to 7 times.
        coverage: methods differ, and all simultaneous intervals hold the truth.
        power: one method is a point better than the others, and a given one of those is called worse.
    """

    false: float
    uneven: float
    coverage: float
    power: float


def with_the_best(methods: int, seeds: int, repeats: int, tasks: int = 1) -> Rates:
    """Simulate the simultaneous comparisons with the best (`reports.statistics.best`)."""
    rng = generator("simulate", "best", methods, seeds, tasks)
    equal, even = np.zeros(methods), np.ones(methods)
    ahead = equal.copy()
    ahead[0] = _POINT
    hits = np.zeros(4)
    for _ in range(repeats):
        uneven = np.exp(rng.uniform(-1, 1, methods))
        graded = -rng.exponential(2 * _NOISE, methods)
        hits[0] += _differ(_standings(rng, equal, even, seeds, tasks))
        hits[1] += _differ(_standings(rng, equal, uneven, seeds, tasks))
        hits[2] += _covers(rng, graded, uneven, seeds, tasks)
        hits[3] += _standings(rng, ahead, even, seeds, tasks)[1].verdict == "worse"
    return Rates(*(hits / repeats).tolist())


def single(seeds: int, repeats: int) -> dict[str, float]:
    """Coverage of the intervals that are about one method, or one pair, at a time."""
    rng = generator("simulate", "single", seeds)
    hits: dict[str, list[bool]] = {}

    def note(name: str, low: float, high: float, truth: float) -> None:
        hits.setdefault(name, []).append(low <= truth <= high)

    for k in range(repeats):
        x, y = rng.normal(90, 1, seeds), rng.normal(90, 1, seeds)
        summary = inference.summarise(x)
        note("mean (t on logits)", *summary.percent, 90)
        method, reference = ({str(seed): value for seed, value in enumerate(values)} for values in (x + 1, y))
        paired = inference.paired(method, reference)
        note("paired difference (t)", paired.low, paired.high, 1)
        note("effect size d_z (noncentral t)", paired.effect_low, paired.effect_high, 1 / np.sqrt(2))
        better = inference.probability_of_improvement([x + 1], [y])
        note("P(better), 1 task (exact binomial)", better.low, better.high, float(stats.norm.cdf(1 / np.sqrt(2))))
        printed = inference.summarise(rng.normal(89, 2, 3))
        unpaired = inference.unpaired((summary.mean, summary.std, seeds), (printed.mean, printed.std, printed.n))
        note("difference from a printed mean of 3 runs (Cochran and Cox)", *unpaired, 1)
        tasks = [rng.normal(level, 1, seeds) for level in _LEVELS]
        middle = inference.bootstrap(tasks, inference.iqm, "simulate", k, repeats=400)
        note("IQM, 4 tasks (bootstrap t)", middle.low, middle.high, _IQM_TRUTH)
        middle = inference.bootstrap(tasks[2:3], inference.iqm, "simulate", k, repeats=400)
        note("IQM, 1 task (bootstrap t)", middle.low, middle.high, 90)
    return {name: float(np.mean(values)) for name, values in hits.items()}


def family_errors(methods: int, seeds: int, repeats: int) -> float:
    """Simulate equal methods: how often a test of the report calls any two of them different."""
    rng = generator("simulate", "family", methods, seeds)
    errors = 0
    for _ in range(repeats):
        scores = rng.normal(90, 1, (methods, seeds))
        p_values = inference.holm([inference.p_value(row - scores[0]) for row in scores[1:]])
        errors += min(p_values) < inference.LEVEL
    return errors / repeats


def ranks_errors(methods: int, repeats: int) -> float:
    """Simulate equal methods on as few tasks as suffice: how often critical differences tell any two apart."""
    rng = generator("simulate", "ranks", methods)
    tasks, errors = inference.tasks_needed(methods), 0
    names = [str(k) for k in range(methods)]
    for _ in range(repeats):
        result = inference.critical_difference(names, rng.normal(90, 1, (tasks, methods)))
        errors += result.cliques != ((0, methods - 1),)
    return errors / repeats


def rank_intervals(methods: int, seeds: int, repeats: int, tasks: int = 4) -> tuple[float, float]:
    """Simulate rank intervals: how often equal methods are told apart, and how often all hold the true rank.

    In the second, methods differ and so do their standard deviations; a true rank is 1 plus the number of better ones.
    """
    rng = generator("simulate", "rank intervals", methods, seeds)
    equal, even = np.zeros(methods), np.ones(methods)
    apart = held = 0
    for _ in range(repeats):
        places = ranking.rank(_draw(rng, equal, even, seeds, tasks), ["one"] * tasks)
        apart += any(place.first > 1 or place.last < methods for place in places)
        levels = -rng.exponential(2 * _NOISE, methods)
        places = ranking.rank(_draw(rng, levels, np.exp(rng.uniform(-1, 1, methods)), seeds, tasks), ["one"] * tasks)
        truth = 1 + (levels[None] > levels[:, None]).sum(axis=1)
        held += all(place.first <= at <= place.last for place, at in zip(places, truth, strict=True))
    return apart / repeats, held / repeats


def winners(methods: int, seeds: int, repeats: int) -> tuple[float, float]:
    """Simulate methods without any gain: how often the interval of the one with the highest mean leaves out 0.

    Gains are paired with one reference, whose noise they share.

    Returns:
        The share for the interval by itself, and for that corrected for the number of methods.
    """
    rng = generator("simulate", "winners", methods, seeds)
    misses = np.zeros(2)
    for _ in range(repeats):
        gains = rng.normal(size=(methods, seeds)) - rng.normal(size=seeds)
        winner = gains[gains.mean(axis=1).argmax()]
        for k, level in enumerate((inference.LEVEL, inference.LEVEL / methods)):
            summary = inference.summarise(winner, level)
            misses[k] += not summary.low <= 0 <= summary.high
    single_rate, corrected_rate = (misses / repeats).tolist()
    return single_rate, corrected_rate


def clients_spread(samples: int, differ: float, repeats: int, clients: int = 20) -> dict[str, float]:
    """Simulate the mean spread over clients, in points: true, seen, of equal clients, and of shrunk accuracies.

    Args:
        samples: test samples of each client.
        differ: true standard deviation of the clients' accuracies, in points around 80 %.
    """
    rng = generator("simulate", "clients", samples, str(differ))
    spreads: dict[str, list[float]] = {"truth": [], "seen": [], "equal clients": [], "shrunk": []}
    for k in range(repeats):
        true = np.clip(rng.normal(0.8, differ / 100, clients), 0, 1)
        sizes = np.full(clients, float(samples))
        correct = rng.binomial(samples, true).astype(float)
        null = fairness.equal_clients(correct, sizes, "simulate", samples, k)
        for name, accuracies in zip(
            spreads, (100 * true, 100 * correct / sizes, null, fairness.shrunk(correct, sizes)), strict=True
        ):
            spreads[name].append(float(fairness.spread(accuracies).mean()))
    return {name: float(np.mean(values)) for name, values in spreads.items()}


_IQM_TRUTH = float(
    inference.iqm(
        [generator("simulate", "iqm", k).normal(level, 1, 400_000) for k, level in enumerate((60, 80, 90, 95))]
    )
)


def _draw(rng: np.random.Generator, levels: Floats, noise: Floats, seeds: int, tasks: int) -> list[Floats]:
    """Accuracies in percent, per task `[methods, seeds]`."""
    tables = []
    for task in range(tasks):
        shared = _LEVEL + 0.3 * task / tasks + 2 * _NOISE * rng.normal(size=seeds)
        residuals = _NOISE * noise[:, None] * rng.normal(size=(len(levels), seeds))
        tables.append(100 * special.expit(shared + levels[:, None] + residuals))
    return tables


def _standings(rng: np.random.Generator, levels: Floats, noise: Floats, seeds: int, tasks: int) -> list[best.Standing]:
    return best.against_best(_draw(rng, levels, noise, seeds, tasks))


def _differ(standings: list[best.Standing]) -> bool:
    return any(standing.verdict in ("better", "worse") for standing in standings)


def _covers(rng: np.random.Generator, levels: Floats, noise: Floats, seeds: int, tasks: int) -> bool:
    families = [str(task) for task in range(tasks)]
    lows, highs = best.constrained(*ranking.pair_intervals(_draw(rng, levels, noise, seeds, tasks), families))
    truth = np.array([level - np.delete(levels, k).max() for k, level in enumerate(levels)])
    return bool(((lows - 1e-9 <= truth) & (truth <= highs + 1e-9)).all())


def _print_best(repeats: int, counts: Sequence[int] = METHODS, runs: Sequence[int] = SEEDS) -> None:
    print("| methods | tasks | seeds | false | false, uneven noise | all intervals hold | power for 1 point |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for tasks in (1, 4):
        for methods in counts:
            for seeds in runs:
                rates = with_the_best(methods, seeds, repeats, tasks)
                shown = (rates.false, rates.uneven, rates.coverage, rates.power)
                print(f"| {methods} | {tasks} | {seeds} | {' | '.join(f'{100 * x:.1f}' for x in shown)} |", flush=True)


def _print_single(repeats: int) -> None:
    print("| interval holds the truth | 3 seeds | 5 seeds | 10 seeds |\n|---|---:|---:|---:|")
    by_seeds = [single(seeds, repeats) for seeds in SEEDS]
    for name in by_seeds[0]:
        print(f"| {name} | {' | '.join(f'{100 * rates[name]:.1f}' for rates in by_seeds)} |")


def _print_families(repeats: int) -> None:
    print("| any two equal methods called different | 3 seeds | 5 seeds | 10 seeds |\n|---|---:|---:|---:|")
    for methods in METHODS:
        errors = [family_errors(methods, seeds, repeats) for seeds in SEEDS]
        print(f"| paired t with Holm, {methods} methods | {' | '.join(f'{100 * e:.1f}' for e in errors)} |")


def _print_ranks(repeats: int) -> None:
    print("| ranks over tasks: any two equal methods told apart | percent |\n|---|---:|")
    for methods in METHODS:
        error = ranks_errors(methods, repeats)
        print(f"| {methods} methods, {inference.tasks_needed(methods)} tasks | {100 * error:.1f} |", flush=True)


def _print_rank_intervals(repeats: int) -> None:
    print("| rank intervals, 4 tasks | 3 seeds | 5 seeds | 10 seeds |\n|---|---:|---:|---:|")
    for methods in METHODS:
        results = [rank_intervals(methods, seeds, repeats) for seeds in SEEDS]
        for k, name in enumerate(("equal methods told apart", "all hold the true rank")):
            print(
                f"| {methods} methods, {name} | {' | '.join(f'{100 * rates[k]:.1f}' for rates in results)} |",
                flush=True,
            )


def _print_winners(repeats: int) -> None:
    print("| interval of the best of equal methods leaves out 0 | 3 seeds | 5 seeds | 10 seeds |\n|---|---:|---:|---:|")
    for methods in (5, 20, 66):
        results = [winners(methods, seeds, repeats) for seeds in SEEDS]
        for k, name in enumerate(("by itself", "corrected")):
            print(f"| {methods} methods, {name} | {' | '.join(f'{100 * rates[k]:.1f}' for rates in results)} |")


def _print_clients(repeats: int) -> None:
    print("| test samples of a client | truth | seen | equal clients | shrunk |\n|---:|---:|---:|---:|---:|")
    for samples in (5, 20, 100):
        for differ in (0.0, 5.0, 10.0):
            spreads = clients_spread(samples, differ, repeats)
            print(f"| {samples} | {' | '.join(f'{value:.1f}' for value in spreads.values())} |", flush=True)


PARTS: dict[str, Callable[..., None]] = {
    "best": _print_best,
    "single": _print_single,
    "families": _print_families,
    "ranks": _print_ranks,
    "rank-intervals": _print_rank_intervals,
    "noise": noise.print_table,
    "winners": _print_winners,
    "clients": _print_clients,
}


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--methods", type=int, nargs="+", help="of the parts `best` and `noise`")
    parser.add_argument("--seeds", type=int, nargs="+", help="of the parts `best` and `noise`")
    options = parser.parse_args()
    for name in options.parts or PARTS:
        chosen = {"counts": options.methods, "runs": options.seeds} if name in ("best", "noise") else {}
        PARTS[name](options.repeats, **{key: numbers for key, numbers in chosen.items() if numbers})
        print(flush=True)


if __name__ == "__main__":
    main()
