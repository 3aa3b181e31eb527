"""MR-MTL against its formula."""

from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]


def test_follows_the_formula() -> None:
    """Two clients, three rounds: own models go on, and only their mean travels."""
    federation = toy("mrmtl", sizes=SIZES, hp={"lam": 0.7}, **PLAIN)
    run(federation, 3)
    mean = initial(federation)
    models = [mean, mean]
    for t in range(3):
        for i in range(2):
            w = models[i]
            for x, target in local_batches(SIZES, t, i):
                w = w - 0.1 * (gradient(w, x, target) + 0.7 * (w - mean))
            models[i] = w
        mean = (9 * models[0] + 5 * models[1]) / 14
    near(generic(federation), mean)
    for i, w in personal(federation).items():
        near(w, models[i])
