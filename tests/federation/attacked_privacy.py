"""Attacks on an epsilon: two neighbours, the privacy loss of what is released of the first, and the epsilon that this
loss shows at least.

The loss L of a release is the logarithm of its density beside one neighbour over that beside the other. Every true
epsilon has delta >= E max(0, 1 - exp(epsilon - L)) for releases of the first neighbour. Each draw of L is made a coin
of that probability, so that Clopper-Pearson's lower limit is exact.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats

from bench.data import Array

Losses = Callable[[np.random.Generator, int], Array]
"""Privacy losses `[draws]` of one release of the first neighbour."""


def delta_at_least(losses: Array, epsilon: float, rng: np.random.Generator, confidence: float = 0.999) -> float:
    """The delta that these losses show for an epsilon, at least."""
    hits = int((rng.random(len(losses)) < -np.expm1(np.minimum(epsilon - losses, 0))).sum())
    return float(stats.beta.ppf(1 - confidence, hits, len(losses) - hits + 1)) if hits else 0.0


def epsilon_at_least(losses: Array, delta: float, confidence: float = 0.999) -> float:
    """The largest epsilon, to a thousandth, for which the losses show more than delta; 0 if there is none."""
    low, high = 0.0, float(losses.max())
    while high - low > 1e-3:
        middle = (low + high) / 2
        shown = delta_at_least(losses, middle, np.random.default_rng(1), confidence)  # the same coins: it is monotone
        low, high = (middle, high) if shown > delta else (low, middle)
    return low


def composed(release: Losses, rounds: int, draws: int, seed: int = 0) -> Array:
    """Losses `[draws]` of all rounds together."""
    rng = np.random.default_rng(seed)
    return sum((release(rng, draws) for _ in range(rounds)), np.zeros(draws))


def one_more(noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm by its own coin, where all others send nothing, and the same client
    sending nothing."""

    def losses(rng: np.random.Generator, draws: int) -> Array:
        x = (rng.random(draws) < rate) + noise * rng.standard_normal(draws)
        return np.log1p(rate * np.expm1((x - 0.5) / noise**2))

    return losses


def one_less(noise: float, rate: float) -> Losses:
    """The same pair, of the client that sends nothing."""

    def losses(rng: np.random.Generator, draws: int) -> Array:
        x = noise * rng.standard_normal(draws)
        return -np.log1p(rate * np.expm1((x - 0.5) / noise**2))

    return losses


def in_its_place(noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm, and one in its place that sends the opposite, where a round has a fixed
    number of clients and all others send the opposite, too: who takes part leaves its place to none of those."""
    return one_more(noise / 2, rate)


def with_a_bit(noise: float, bit_noise: float, rate: float) -> Losses:
    """Of a client that sends its whole norm and, beside it, that its update was short, and the same client sending
    nothing.

    Args:
        noise: on the update, in units of the norm.
        bit_noise: on the number of short updates, of which a client is a half more or less.
        rate: the probability with which it sends something.
    """

    def losses(rng: np.random.Generator, draws: int) -> Array:
        there = rng.random(draws) < rate
        x, bit = there + noise * rng.standard_normal(draws), 0.5 * there + bit_noise * rng.standard_normal(draws)
        return np.log1p(rate * np.expm1((x - 0.5) / noise**2 + (0.5 * bit - 0.125) / bit_noise**2))

    return losses
