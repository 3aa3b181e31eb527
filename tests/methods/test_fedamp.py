"""FedAMP against its formulas."""

import numpy as np

from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5, 7]
SIGMA, SHARE, PULL = 0.3, 0.2, 0.8


def test_follows_the_formulas() -> None:
    """Three clients, three rounds, pair by pair."""
    hp = {"sigma": SIGMA, "share": SHARE, "pull": PULL}
    federation = toy("fedamp", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 3)
    models = [initial(federation)] * 3
    for t in range(3):
        new = []
        for i, w in enumerate(models):
            xi = [SHARE * np.exp(-((w - v) ** 2).sum() / SIGMA) if j != i else 0 for j, v in enumerate(models)]
            center = (1 - sum(xi)) * w + sum(x * v for x, v in zip(xi, models, strict=True))
            for x, target in local_batches(SIZES, t, i):
                w = w - 0.1 * (gradient(w, x, target) + PULL * (w - center))
            new.append(w)
        models = new
    for i, w in personal(federation).items():
        near(w, models[i])
    pairs = np.array([[SHARE * np.exp(-((w - v) ** 2).sum() / SIGMA) for v in models] for w in models])
    np.fill_diagonal(pairs, 0)
    near(federation.method.relations(federation.server)["attention"], pairs + np.diag(1 - pairs.sum(1)))
