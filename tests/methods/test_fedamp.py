"""FedAMP against its formulas, and its limits: Local, and the mean."""

import numpy as np
import torch

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


def test_a_huge_sigma_makes_the_mean() -> None:
    """All centres are the mean of all models; a tiny one makes each client's own model."""
    for sigma, own in ((1e12, False), (1e-12, True)):
        federation = toy("fedamp", hp={"sigma": sigma}, sizes=SIZES)
        run(federation, 2)
        models = torch.stack(list(personal(federation).values()))
        for i in range(3):
            center = federation.clients.down(i)["center"]
            expected = models[i] if own else models.mean(0)
            torch.testing.assert_close(center, expected, rtol=1e-9, atol=1e-9)


def test_weights_are_a_mean_and_nearer_models_weigh_more() -> None:
    federation = toy("fedamp", hp={"sigma": 0.5}, sizes=SIZES)
    run(federation, 2)
    xi = torch.tensor(federation.relations()["matrices"]["attention"])
    torch.testing.assert_close(xi.sum(1), torch.ones(3))
    assert (xi > 0).all()
    models = torch.stack(list(personal(federation).values()))
    distance = torch.cdist(models, models)
    for i in range(3):
        j, k = (n for n in range(3) if n != i)
        assert (xi[i, j] > xi[i, k]) == (distance[i, j] < distance[i, k])
