"""pFedSim against its algorithm in numpy, FedAvg in the warm-up, and heads of two kinds of clients."""

from dataclasses import replace

import numpy as np
import torch

from bench.federation.federation import Federation
from bench.settings import Settings
from methods.pfedsim import similarities
from tests.engine.problems import personal, run, toy, toy_data, toy_partition
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5, 7]


def test_follows_the_algorithm() -> None:
    """Three clients, two rounds of FedAvg and three of their own; the first 12 entries are the body."""
    federation = toy("pfedsim", sizes=SIZES, hp={"warmup": 2}, **PLAIN)
    run(federation, 5)
    starts = [initial(federation)] * 3
    for t in range(5):
        models = [descend(w, local_batches(SIZES, t, i)) for i, w in enumerate(starts)]
        if t < 2:
            starts = [np.average(models, axis=0, weights=SIZES)] * 3
            continue
        for i, w in enumerate(models):
            share = []
            for j, v in enumerate(models):
                cosine = w[12:] @ v[12:] / np.linalg.norm(w[12:]) / np.linalg.norm(v[12:])
                share.append(1.0 if i == j else max(0.0, -np.log(1 - cosine)))
            body = sum(a * v[:12] for a, v in zip(share, models, strict=True)) / sum(share)
            starts[i] = np.concatenate([body, w[12:]])
    for i, w in personal(federation).items():
        near(w, models[i])


def test_bodies_are_mixed_among_clients_of_a_kind() -> None:
    """Two clients have the labels of the other two in another order: their shares in each other's bodies are larger."""
    data = toy_data()
    part = toy_partition(data, [10, 10, 10, 10])
    y = data.y.copy()
    y[:20] = (y[:20] + 1) % 3
    settings = Settings(
        method="pfedsim", hp={"warmup": 0}, model="test_linear", dtype="float64", lr=0.3, batch_size=10, epochs=10,
        clients=4, seed=3,
    )  # fmt: skip
    federation = Federation(settings, dataset=replace(data, y=y), partition=part, public=None)
    for _ in range(3):
        federation.advance()
    share = np.array(federation.relations()["matrices"]["similarity"])
    for i, mate in ((0, 1), (1, 0), (2, 3), (3, 2)):
        assert share[i, mate] > max(share[i, j] for j in range(4) if j not in (i, mate))


def test_equal_and_opposite_heads() -> None:
    """An equal head has a large weight and not all of it, an opposite one none; all rows sum to 1."""
    shares = similarities(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]], dtype=torch.float64))
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert 0.9 < shares[0, 1] < 1
    assert shares[0, 2] == 0
    assert shares[2, 2] == 1


def test_after_the_warm_up_bodies_come_down_and_models_go_up() -> None:
    federation = toy("pfedsim", sizes=SIZES, hp={"warmup": 1})
    for _ in range(3):
        federation.advance()
    assert [row["up"] for row in federation.ledger] == [3 * 8 * 21] * 3
    assert [row["down_receivers"] for row in federation.ledger] == [3 * 8 * 21, 3 * 8 * 21, 3 * 8 * 12]
