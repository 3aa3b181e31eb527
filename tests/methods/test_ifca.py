"""IFCA with one body for all heads against its formulas; without shared layers it is HypCluster."""

import numpy as np

from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, Array, cross_entropy, descend, initial, local_batches, local_data, near

SIZES = [4, 2, 3]  # small enough for clients to differ in their choice


def test_shared_bodies_follow_the_algorithm() -> None:
    """Three clients, two heads, three rounds: the body is the mean of all, a head that of those who chose it."""
    federation = toy("ifca", sizes=SIZES, hp={"k": 2, "shared": ["inner"]}, **PLAIN)
    run(federation, 3)
    body, heads = initial(federation)[:12], [initial(federation, draw=k)[12:] for k in range(2)]

    def choice(i: int) -> int:
        losses = [cross_entropy(join(k), *local_data(SIZES, i)) for k in range(2)]
        return losses.index(min(losses))

    def join(k: int) -> Array:
        return np.concatenate([body, heads[k]])

    seen = set[int]()
    for t in range(3):
        chosen = [choice(i) for i in range(3)]
        seen |= set(chosen)
        sent = [descend(join(k), local_batches(SIZES, t, i)) for i, k in enumerate(chosen)]
        body = sum(n * w[:12] for n, w in zip(SIZES, sent, strict=True)) / sum(SIZES)
        for k in set(chosen):
            mine = [i for i in range(3) if chosen[i] == k]
            heads[k] = sum(SIZES[i] * sent[i][12:] for i in mine) / sum(SIZES[i] for i in mine)
    assert seen == {0, 1}
    for i, w in personal(federation).items():
        near(w, join(choice(i)))
