"""DS-FL against its formulas: a reply inside the round, and a server that trains."""

import numpy as np
import pytest

from bench.engine.batches import steps_per_epoch
from bench.engine.device_data import SERVER
from bench.method import Feed
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import (
    PLAIN,
    PUBLIC,
    PUBLIC_X,
    Array,
    batches,
    descend,
    initial,
    local_batches,
    logits,
    near,
    softmax,
)

SIZES = [9, 5]
HYPER = {"temperature": 0.3, "distil_epochs": 2, "distil_batch": 5}


def distilled(w: Array, target: Array, t: int, owner: int) -> Array:
    """Two epochs over the public set."""
    n, steps = len(PUBLIC_X), 2 * steps_per_epoch(len(PUBLIC_X), 5, batch_statistics=False)
    drawn = batches(Feed("public", 5), n, n, steps, t, owner)
    return descend(w, ((PUBLIC_X[p], target[p]) for p in drawn))


@pytest.mark.parametrize("aggregation", ["era", "sa"])
def test_follows_the_formulas(aggregation: str) -> None:
    """Two clients, two rounds: train, predict, average, sharpen, distil on both sides."""
    federation = toy("dsfl", sizes=SIZES, public=PUBLIC, hp={**HYPER, "aggregation": aggregation}, **PLAIN)
    run(federation, 2)
    server = initial(federation)
    own = [server, server]
    for t in range(2):
        own = [descend(w, local_batches(SIZES, t, i)) for i, w in enumerate(own)]
        average = np.mean([softmax(logits(w, PUBLIC_X)) for w in own], axis=0)
        target = softmax(average / 0.3) if aggregation == "era" else average
        own = [distilled(w, target, t, i) for i, w in enumerate(own)]
        server = distilled(server, target, t, SERVER)
    near(generic(federation), server)
    for i, w in enumerate(own):
        near(personal(federation)[i], w)
