"""MetaFed round a ring against plain torch, and who teaches whom how much."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bench.method import Feed
from bench.rng import generator
from methods.metafed import strength
from tests.engine.problems import personal, run, toy
from tests.methods import reference
from tests.methods.by_autograd import descend_on, features, plain
from tests.methods.reference import PLAIN, SEED, Array, descend, initial, local_data, logits, near

SIZES = [13, 12, 15]
LAM, THRESHOLD = 0.8, 0.6
IN_TURN = {"selection": "round_robin", "participation": 0.34}


def divided(i: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(inputs, one-hot labels) of a client's remainder and of its hold-out split."""
    n, (x, y) = SIZES[i], local_data(SIZES, i)
    held = np.zeros(n, np.bool_)
    held[generator("holdout", SEED, i).permutation(n)[: n // 5]] = True
    return (x[~held], y[~held]), (x[held], y[held])


def batches(t: int, i: int, epochs: int = 1) -> Iterator[tuple[Array, Array]]:
    """A client's batches of its remainder."""
    (x, y), _ = divided(i)
    steps = epochs * -(-len(x) // reference.BATCH)
    for at in reference.batches(Feed(), len(x), max(SIZES), steps, t, i):
        yield x[at], y[at]


def accuracy(w: Array, i: int) -> float:
    """On the hold-out split."""
    _, (x, y) = divided(i)
    return float((logits(w, x).argmax(1) == y.argmax(1)).mean())


def taught(w: Array, teacher: Array | None, good: bool, lam: float, t: int, i: int) -> Array:
    """One epoch beside a teacher, or from it."""
    if teacher is None or not good:
        return descend(w if teacher is None else teacher, batches(t, i))
    target = torch.tensor(teacher)

    def objective(v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return plain(v, x, y) + lam * torch.nn.functional.mse_loss(features(v, x), features(target, x))

    return descend_on(w, batches(t, i), objective)


def test_follows_the_algorithm() -> None:
    """Three clients in turn, seven rounds, and the last stage; some learn beside their teachers and some from them."""
    hp = {"threshold": THRESHOLD, "lam": LAM, "pretrain_epochs": 2}
    federation = toy("metafed", sizes=SIZES, hp=hp, **{**PLAIN, **IN_TURN})
    run(federation, 7)
    w, good, known = [initial(federation)] * 3, [False] * 3, dict[int, Array]()
    ways = set()
    for t in range(7):
        i = t % 3
        if t < 3:
            w[i] = descend(w[i], batches(t, i, 2))
            good[i] = accuracy(w[i], i) >= THRESHOLD
        before = (i - 1) % 3
        ways.add(good[i])
        w[i] = taught(w[i], known.get(before), good[i], LAM, t, i)
        good[i] = good[i] or accuracy(w[i], i) >= THRESHOLD
        known[i] = w[i]
    assert ways == {True, False}
    common = known[2]
    for i, found in personal(federation).items():
        own, other = accuracy(w[i], i), accuracy(common, i)
        lam = 0 if other <= own and other < 0.5 else LAM * 10 ** min(1, 5 * (other - own)) / 10
        near(found, taught(w[i], common, good[i], lam, 7, i))


@pytest.mark.parametrize(
    ("own", "common", "weight"),
    [(0.45, 0.4, 0), (0.3, 0.4, 10**0.5 / 10), (0.8, 0.6, 0.01), (0.6, 0.6, 0.1), (0.1, 0.9, 1)],
)
def test_the_common_model_teaches_the_more_the_better_it_is(own: float, common: float, weight: float) -> None:
    """Nothing where it is worse and useless; a little where it is worse and good; up to ten times that."""
    assert strength(own, common) == pytest.approx(weight)


def test_the_teacher_is_the_nearest_before_that_was_heard() -> None:
    """The first of the ring learns from the last; before anybody was heard there is no teacher."""
    federation = toy("metafed", sizes=SIZES, hp={"pretrain_epochs": 0}, **IN_TURN)
    assert federation.clients.down(0) == {}
    run(federation, 2)
    models = federation.server.state["models"]
    assert sorted(models) == [0, 1]
    for i, teacher in ((0, 1), (1, 0), (2, 1)):
        assert torch.equal(federation.clients.down(i)["teacher"].weights, models[teacher].weights)
