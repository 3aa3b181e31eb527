"""FedCAC against its algorithm in numpy, and where it is FedAvg and Local."""

import numpy as np

from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, Array, descend, initial, local_batches, near

SIZES = [9, 5, 7]
BETA = 3


def mask_of(start: Array, w: Array) -> Array:
    """Half of the 12 entries below, and 4 of the 9 of the head."""
    sensitivity = np.abs((w - start) * w)
    mask = np.zeros(21, bool)
    mask[np.argsort(-sensitivity[:12])[:6]] = True
    mask[12 + np.argsort(-sensitivity[12:])[:4]] = True
    return mask


def test_follows_the_algorithm() -> None:
    """Three clients, five rounds; with beta = 3 the threshold rises in two of them."""
    federation = toy("fedcac", sizes=SIZES, hp={"tau": 0.5, "beta": BETA}, **PLAIN)
    run(federation, 5)
    starts = [initial(federation)] * 3
    collaborated = alone = 0
    for t in range(5):
        models = [descend(starts[i], local_batches(SIZES, t, i)) for i in range(3)]
        masks = [mask_of(starts[i], models[i]) for i in range(3)]
        mean = np.average(models, axis=0, weights=SIZES)
        overlap = [[(a & b).sum() / 10 for b in masks] for a in masks]  # the same where all have 10 critical ones
        pairs = [overlap[i][j] for i in range(3) for j in range(3) if i != j]
        average, largest = sum(pairs) / 6, max(pairs)
        threshold = average + (t + 1) / BETA * (largest - average) if t + 1 < BETA else 2
        starts = []
        for i in range(3):
            mates = [j for j in range(3) if j == i or overlap[i][j] >= threshold - 1e-9]
            collaborated += len(mates) > 1
            alone += len(mates) == 1
            starts.append(np.where(masks[i], np.mean([models[j] for j in mates], axis=0), mean))
    for i, w in personal(federation).items():
        near(w, models[i])
    assert collaborated
    assert alone


def test_a_mask_costs_a_byte_for_each_parameter() -> None:
    """Up a model and the mask, down the mean of all and, from the second round on, of the collaborators."""
    federation = toy("fedcac", sizes=SIZES)
    for _ in range(2):
        federation.advance()
    first, second = federation.ledger
    assert first["up"] == second["up"] == 3 * (8 * 21 + 21)
    assert (first["down_receivers"], second["down_receivers"]) == (3 * 8 * 21, 3 * 2 * 8 * 21)
