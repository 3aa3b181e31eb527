"""DS-FL against its formulas: a reply inside the round, and a server that trains."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.engine.batches import steps_per_epoch
from bench.engine.device_data import SERVER
from bench.method import Feed
from methods.dsfl import sharpened
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
ROW = st.lists(st.floats(0.01, 1), min_size=2, max_size=6).map(lambda p: torch.tensor([p]) / sum(p))


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


def test_one_architecture_per_client() -> None:
    """Only predictions travel, so clients may differ in architecture; each one's own comes from the cell."""
    federation = toy("dsfl", public=PUBLIC, client_models=("test_linear", "test_norm"))
    run(federation, 2)
    assert {w.spec.arch for w in federation.evaluator.personal(federation.version).values()} == {
        federation.server.initial_model(i).spec.arch for i in (0, 1)
    }
    matrix = len(PUBLIC.y) * 3 * 8
    row = federation.ledger[-1]
    assert (row["up"], row["down_distinct"], row["down_receivers"]) == (5 * matrix, matrix, 5 * matrix)


def test_a_certain_row_keeps_a_visible_floor() -> None:
    """With 100 classes and temperature 0.1 a one-hot row becomes e^10 / (e^10 + 99)."""
    row = sharpened(torch.eye(100, dtype=torch.float64)[:1], 0.1)
    assert float(row.max()) == pytest.approx(np.exp(10) / (np.exp(10) + 99), abs=1e-12)


@given(ROW)
def test_sharpening_keeps_order_and_probability(row: torch.Tensor) -> None:
    """Rows stay on the simplex, ordered as before; uniform rows stay uniform."""
    sharp = sharpened(row, 0.1)
    assert float(sharp.sum()) == pytest.approx(1, abs=1e-5)
    assert (sharp[0][row[0].argsort()].diff() >= -1e-6).all()
    uniform = torch.full_like(row, 1 / row.shape[1])
    torch.testing.assert_close(sharpened(uniform, 0.1), uniform)
