"""How the clients of a round are selected: the setting `selection`.

A selection is a function of the ids of all clients that train, their numbers of training samples, how many are wanted,
the round from 0, and the round's generator; it returns that many different ids. Own ones register in the same way.
"""

from collections.abc import Sequence

import numpy as np

from bench.method import SELECTIONS

Ints = Sequence[int]


@SELECTIONS.register("uniform")
def uniform(ids: Ints, sizes: Ints, count: int, round: int, rng: np.random.Generator) -> list[int]:
    """Every client is as likely as any other."""
    return [int(i) for i in rng.choice(ids, count, replace=False)]


@SELECTIONS.register("by_size")
def by_size(ids: Ints, sizes: Ints, count: int, round: int, rng: np.random.Generator) -> list[int]:
    """One after the other, each with the probability p_k = n_k / n among those left (COMET, Algorithm 1)."""
    share = np.asarray(sizes) / sum(sizes)
    return [int(i) for i in rng.choice(ids, count, replace=False, p=share)]


@SELECTIONS.register("round_robin")
def round_robin(
    ids: Sequence[int], sizes: Sequence[int], count: int, round: int, rng: np.random.Generator
) -> list[int]:
    """In turn, in the order of ids: nobody comes twice before everybody has come once."""
    return [ids[(round * count + k) % len(ids)] for k in range(count)]
