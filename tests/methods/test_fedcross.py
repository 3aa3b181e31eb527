"""FedCross against its algorithm in numpy, two models that become FedAvg's, and what crossing leaves as it is."""

import numpy as np
import pytest
import torch

from bench.rng import generator
from tests.engine.problems import generic, run, toy
from tests.methods.reference import PLAIN, SEED, descend, initial, local_batches, near

SIZES = [9, 5, 7]
ALPHA = 0.7


@pytest.mark.parametrize("collaborator", ["lowest", "highest", "in_order"])
def test_follows_the_algorithm(collaborator: str) -> None:
    """Three clients, four rounds; who trains which model is dealt anew in each."""
    federation = toy("fedcross", sizes=SIZES, hp={"alpha": ALPHA, "collaborator": collaborator}, **PLAIN)
    run(federation, 4)
    models, deals = [initial(federation)] * 3, set()
    for t in range(4):
        deal = generator("server", SEED, "deal", t).permutation(3)
        deals.add(tuple(deal))
        for i in range(3):
            models[deal[i]] = descend(models[deal[i]], local_batches(SIZES, t, i))
        crossed = []
        for k, w in enumerate(models):
            others = [j for j in range(3) if j != k]
            cosine = {j: w @ models[j] / np.linalg.norm(w) / np.linalg.norm(models[j]) for j in others}
            by = {"lowest": min(others, key=lambda j: cosine[j]), "highest": max(others, key=lambda j: cosine[j])}
            j = by.get(collaborator, (k + 1 + t % 2) % 3)
            crossed.append(ALPHA * w + (1 - ALPHA) * models[j])
        models = crossed
    assert len(deals) > 1
    near(generic(federation), np.mean(models, axis=0))


def test_crossing_in_order_keeps_the_mean() -> None:
    """Each model gives away what it gets: one round ends at the same mean for every alpha."""
    found = []
    for alpha in (0.5, 0.8, 1.0):
        federation = toy("fedcross", hp={"alpha": alpha, "collaborator": "in_order"}, sizes=SIZES)
        run(federation, 1)
        found.append(generic(federation))
    torch.testing.assert_close(found[0], found[2], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], found[2], rtol=1e-12, atol=1e-12)


def test_alone_it_is_local() -> None:
    """One client has one model, and no collaborator."""
    federation, local = toy("fedcross", sizes=[9]), toy("local", sizes=[9])
    run(federation, 3)
    run(local, 3)
    near(generic(federation), local.clients[0].state["personal"].weights.numpy())


def test_a_round_of_half_of_the_clients_has_half_as_many_models() -> None:
    """Every one of them is trained once a round, and all of them change hands."""
    federation = toy("fedcross", sizes=[9, 5, 7, 4], participation=0.5)
    run(federation, 3)
    assert len(federation.server.state["models"]) == 2
    row = federation.ledger[-1]
    assert row["up"] == row["down_receivers"] == row["down_distinct"] == 2 * 8 * 21
