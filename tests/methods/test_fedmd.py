"""FedMD against its formulas: transfer learning once, then digest and revisit on a fresh public subset per round."""

from typing import Any

import numpy as np
import pytest

from bench.engine.batches import steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed
from bench.rng import generator
from tests.engine.problems import assert_same_personal, personal, run, toy, toy_data
from tests.methods.reference import (
    LR,
    PLAIN,
    SEED,
    Array,
    backward,
    batches,
    descend,
    initial,
    local_batches,
    logits,
    near,
)

SIZES = [9, 5, 7]
CLASSES = 5  # of the public samples; the clients have 3
PUBLIC = toy_data(samples=12, classes=CLASSES, seed=9)
X, Y = PUBLIC.x.astype(np.float64), np.eye(CLASSES)[PUBLIC.y]
SUBSET, BATCH = 7, 5


def steps(n: int, width: int, epochs: int) -> int:
    return epochs * steps_per_epoch(n, width, batch_statistics=False)


def transferred(federation: Federation, i: int, epochs: int) -> Array:
    """The body learned with a head for the public classes, the usual head put in, and both trained on own data."""
    public = federation.server.initial_model(i, classes=CLASSES).weights.numpy()
    drawn = batches(Feed("public"), len(X), len(X), steps(len(X), PLAIN["batch_size"], epochs), 0, i)
    public = descend(public, ((X[p], Y[p]) for p in drawn))
    return descend(np.concatenate([public[:12], initial(federation)[12:]]), local_batches(SIZES, 0, i, epochs))


def digested(w: Array, x: Array, consensus: Array, distance: str, t: int, i: int) -> Array:
    """Two epochs over the round's subset."""
    for p in batches(Feed("public", BATCH), len(x), len(x), steps(len(x), BATCH, 2), t, i):
        gap = logits(w, x[p]) - consensus[p]
        slope = 2 * gap if distance == "mse" else np.sign(gap) * (np.abs(gap) > 1e-7)
        w = w - LR * backward(w, x[p], slope / gap.size)
    return w


@pytest.mark.parametrize("distance", ["l1", "mse"])
def test_follows_the_formulas(distance: str) -> None:
    """Three clients, three rounds: transfer once, then scores, their mean, digest, revisit."""
    hp = {"pretrain_epochs": 2, "subset": SUBSET, "distance": distance, "digest_epochs": 2, "digest_batch": BATCH}
    federation = toy("fedmd", sizes=SIZES, public=PUBLIC, hp=hp, **PLAIN)
    own = [transferred(federation, i, epochs=2) for i in range(len(SIZES))]
    for t in range(3):
        run(federation, 1)
        x = X[np.sort(generator("subset", SEED, t).choice(len(X), SUBSET, replace=False))]
        consensus = np.mean([logits(w, x) for w in own], axis=0)
        for i, w in enumerate(own):
            own[i] = descend(digested(w, x, consensus, distance, t, i), local_batches(SIZES, t, i))
            near(personal(federation)[i], own[i])


@pytest.mark.parametrize(
    ("settings", "others"),
    [({"participation": 0.4}, {"participation": 1.0}), ({"hp": {"subset": 5000}}, {"hp": {"subset": len(X)}})],
    ids=["everyone takes part", "a subset is at most the public set"],
)
def test_settings_with_the_same_models(settings: dict[str, Any], others: dict[str, Any]) -> None:
    one, other = (toy("fedmd", public=PUBLIC, **those) for those in (settings, others))
    run(one, 2)
    run(other, 2)
    assert_same_personal(one, other)
    assert all(list(one.clients[i].state) == ["personal"] for i in one.clients.ids)  # no model for public classes
