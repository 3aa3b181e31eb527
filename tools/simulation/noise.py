"""Rank intervals of equal methods whose noise differs over tasks and methods, is skewed or has heavy tails.

`python -m tools.simulation.simulate noise` prints the table of docs/lab-notes.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from bench.data import Floats
from bench.rng import generator
from reports.statistics import best, inference, ranking
from tools.simulation.components import components
from tools.simulation.design import LEAGUE_1

METHODS = (5, 20, 70)
SEEDS = (3, 5)
_LEVEL = float(special.logit(0.9))
_NOISE = 0.7 * (_LEVEL - float(special.logit(0.89)))  # 0.7 points at 90 %


_TWO_FAMILIES = ["one"] * 10 + ["two"] * 2


def _of_tasks(*deviations: float) -> Callable[[np.random.Generator, int], Floats]:
    """Standard deviations by task, alike for all methods."""
    return lambda rng, methods: np.repeat(np.array(deviations)[:, None], methods, axis=1)


def _of_entries(rng: np.random.Generator, methods: int) -> Floats:
    """Standard deviations of entries drawn at random."""
    noise = components(LEAGUE_1).noise
    return noise[:, rng.choice(noise.shape[1], methods, replace=methods > noise.shape[1])]


def _of_entries_tasks(rng: np.random.Generator, methods: int) -> Floats:
    """Root mean squares of the entries' standard deviations, by task."""
    return np.repeat(np.sqrt(np.square(components(LEAGUE_1).noise).mean(axis=1, keepdims=True)), methods, axis=1)


def _wild(rng: np.random.Generator, methods: int) -> Floats:
    """A method that is eight times as noisy as the others on a task which counts a quarter."""
    deviations = np.ones((12, methods))
    deviations[-1, 0] = 8
    return deviations


@dataclass(frozen=True)
class Noise:
    """Noise of equal methods, and how it differs over tasks and methods.

    Attributes:
        deviations: from a generator and a number of methods, standard deviations `[tasks, methods]`.
        families: data family of each task.
        common: share of a method's variance that all its tasks have in common in a seed.
    """

    deviations: Callable[[np.random.Generator, int], Floats]
    families: list[str]
    common: float = 0.0


NOISES = {
    "4 tasks alike": Noise(_of_tasks(1, 1, 1, 1), ["one"] * 4),
    "10 + 2 tasks alike": Noise(_of_tasks(*[1] * 12), _TWO_FAMILIES),
    "10 + 2, the two 3 times as noisy": Noise(_of_tasks(*[1] * 10, 3, 3), _TWO_FAMILIES),
    "10 + 1, the one 3 times as noisy": Noise(_of_tasks(*[1] * 10, 3), _TWO_FAMILIES[:-1]),
    "10 + 2, the two a third as noisy": Noise(_of_tasks(*[3] * 10, 1, 1), _TWO_FAMILIES),
    "10 + 2, tasks as in the entries": Noise(_of_entries_tasks, _TWO_FAMILIES),
    "10 + 2, tasks as in the entries, 3 % common to a seed": Noise(_of_entries_tasks, _TWO_FAMILIES, 0.034),
    "10 + 2, tasks and methods as in the entries": Noise(_of_entries, _TWO_FAMILIES),
    "10 + 2, one method 8 times as noisy on one of the two": Noise(_wild, _TWO_FAMILIES),
}
SHAPES = ("normal", "uneven", "uneven, log-normal 0.5", "uneven, t3", "uneven, log-normal 1")
"""Shapes of the noise; uneven: the methods' standard deviations differ up to 7 times."""
_EVERY_SHAPE = (
    "10 + 2, the two 3 times as noisy",
    "10 + 2, the two a third as noisy",
    "10 + 2, tasks and methods as in the entries",
)
"""Kinds of noise that are printed in all shapes; the others are printed in the first two."""
ROWS = tuple((noise, shape) for noise in NOISES for shape in (SHAPES if noise in _EVERY_SHAPE else SHAPES[:2]))


def unequal_noise(noise: str, shape: str, methods: int, seeds: int, repeats: int) -> tuple[float, float]:
    """Simulate equal methods: how often the league's rank intervals tell any two apart, and how wide they are.

    Args:
        noise: a name of `NOISES`.
        shape: one of `SHAPES`.
        methods, seeds, repeats: how many.

    Returns:
        The share of tables, and the median width over that of Bonferroni's intervals with known variances.
    """
    rng = generator("simulate", "noise", noise, shape, methods, seeds)
    kind = NOISES[noise]
    weights = ranking.family_weights(kind.families)
    quantile = float(best.pairwise_critical(methods, np.array(np.inf), inference.LEVEL))
    pairs = np.triu_indices(methods, 1)
    apart, widths = 0, []
    for _ in range(repeats):
        deviations = _NOISE * kind.deviations(rng, methods)
        if shape != "normal":
            deviations = deviations * np.exp(rng.uniform(-1, 1, methods))
        task_noise, common = (_standard(rng, shape, (tasks, methods, seeds)) for tasks in (len(weights), 1))
        draws = np.sqrt(1 - kind.common) * task_noise + np.sqrt(kind.common) * common
        accuracies = 100 * special.expit(_LEVEL + deviations[:, :, None] * draws)
        mean, half = ranking.pair_intervals(list(accuracies), kind.families)
        apart += bool((np.abs(mean[:, None] - mean[None]) > half)[pairs].any())
        alone, together = weights**2 @ deviations**2, np.square(weights @ deviations)
        variance = ((1 - kind.common) * alone + kind.common * together) / seeds
        reference = quantile * np.sqrt(variance[:, None] + variance[None])
        widths.append(np.median((half / reference)[pairs]))
    return apart / repeats, float(np.median(widths))


def _standard(rng: np.random.Generator, shape: str, size: tuple[int, ...]) -> Floats:
    """Noise with mean 0 and variance 1; log-normal with the standard deviation of its logarithm, t with its freedom."""
    if "t3" in shape:
        return np.asarray(rng.standard_t(3, size) / np.sqrt(3))
    if "log-normal" not in shape:
        return rng.normal(size=size)
    variance = float(shape.rsplit(maxsplit=1)[-1]) ** 2
    draws = np.exp(np.sqrt(variance) * rng.normal(size=size) - variance / 2)
    return np.asarray((draws - 1) / np.sqrt(np.expm1(variance)))


def print_table(repeats: int) -> None:
    """Print the percentage told apart, * above 7, and the median width in brackets."""
    columns = [(methods, seeds) for methods in METHODS for seeds in SEEDS]
    heads = " | ".join(f"{methods} methods, {seeds} seeds" for methods, seeds in columns)
    print(f"| noise over tasks | over methods, shape | {heads} |\n|---|---|{'---:|' * len(columns)}")
    for noise, shape in ROWS:
        results = [unequal_noise(noise, shape, methods, seeds, repeats) for methods, seeds in columns]
        shown = " | ".join(f"{100 * apart:.1f}{'*' * (apart > 0.07)} ({width:.2f})" for apart, width in results)
        print(f"| {noise} | {shape} | {shown} |", flush=True)
