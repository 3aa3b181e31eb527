"""Selection of the clients of a round: the setting `selection`.

A selection is a function of the ids of all clients that train, their numbers of training samples, the number of clients
to select, the round (from 0) and the round's random generator. It returns that many different ids; `poisson` alone
returns that many on average. Users register their own selections in the same way.
"""

from collections.abc import Sequence

import numpy as np

from bench.method import SELECTIONS

Ints = Sequence[int]


@SELECTIONS.register("uniform")
def uniform(ids: Ints, sizes: Ints, count: int, round: int, rng: np.random.Generator) -> list[int]:
    """All clients have the same probability."""
    return [int(i) for i in rng.choice(ids, count, replace=False)]


@SELECTIONS.register("poisson")
def poisson(ids: Ints, sizes: Ints, count: int, round: int, rng: np.random.Generator) -> list[int]:
    """Each client by its own coin, so that a round has `count` clients on average, and may have none."""
    return [i for i, draw in zip(ids, rng.random(len(ids)), strict=True) if draw < count / len(ids)]


@SELECTIONS.register("by_size")
def by_size(ids: Ints, sizes: Ints, count: int, round: int, rng: np.random.Generator) -> list[int]:
    """One after the other, with probabilities in proportion to n_k among the remaining clients (COMET, Algorithm 1)."""
    share = np.asarray(sizes) / sum(sizes)
    return [int(i) for i in rng.choice(ids, count, replace=False, p=share)]


@SELECTIONS.register("round_robin")
def round_robin(
    ids: Sequence[int], sizes: Sequence[int], count: int, round: int, rng: np.random.Generator
) -> list[int]:
    """In turn, in the order of ids: no client is selected again before all others have been."""
    return [ids[(round * count + k) % len(ids)] for k in range(count)]
