"""HypCluster against its formulas, and what must not matter."""

import numpy as np
import torch

from bench.federation.federation import Federation
from methods import hypcluster
from tests.engine.problems import everything, personal, run, toy
from tests.methods.reference import PLAIN, Array, cross_entropy, descend, initial, local_batches, local_data, near

SIZES = [4, 2, 3]  # small enough for clients to differ in their choice


def test_follows_the_formulas() -> None:
    """Three clients, two models, three rounds; both models are chosen at some time."""
    federation = toy("hypcluster", sizes=SIZES, hp={"c": 2}, **PLAIN)
    run(federation, 3)
    models = [initial(federation, draw) for draw in range(2)]
    chosen = set()

    def best(i: int) -> int:
        return int(np.argmin([cross_entropy(w, *local_data(SIZES, i)) for w in models]))

    for t in range(3):
        members: list[list[tuple[int, Array]]] = [[], []]
        for i in range(3):
            members[best(i)].append((SIZES[i], descend(models[best(i)], local_batches(SIZES, t, i))))
            chosen.add(best(i))
        for k, group in enumerate(members):
            if group:
                models[k] = np.average([w for _, w in group], axis=0, weights=[n for n, _ in group])
    assert chosen == {0, 1}
    for k in range(2):
        near(federation.server.state[f"model{k}"].weights, models[k])
    for i in range(3):
        near(personal(federation)[i], models[best(i)])


def start(names: list[str]) -> Federation:
    """Three models, those of the given names in this order."""
    federation = toy("hypcluster", hp={"c": 3})
    state = federation.server.state
    federation.server.state = {f"model{k}": state[name] for k, name in enumerate(names)}
    return federation


def test_order_of_models_does_not_matter() -> None:
    """Renumbered models end as the same models, renumbered."""
    order = ["model2", "model0", "model1"]
    straight, renumbered = start(sorted(order)), start(order)
    run(straight, 3)
    run(renumbered, 3)
    for k, name in enumerate(order):
        torch.testing.assert_close(
            renumbered.server.state[f"model{k}"].weights, straight.server.state[name].weights, rtol=0, atol=1e-12
        )


def test_ties_go_to_the_first_model() -> None:
    """Of equal models the first one is chosen by all, and the others stay unchanged."""
    federation = start(["model0", "model0", "model0"])
    before = federation.server.state["model0"].weights.clone()
    run(federation, 1)
    after = [federation.server.state[f"model{k}"].weights for k in range(3)]
    assert not torch.equal(after[0], before)
    assert torch.equal(after[1], before)
    assert torch.equal(after[2], before)


def test_traffic() -> None:
    """c models down, one up; each distinct downlink counts once."""
    federation = toy("hypcluster", hp={"c": 3}, participation=0.4)
    run(federation, 1)
    size = 8 * len(next(iter(everything(federation).values())))
    row = federation.ledger[0]
    assert (row["up"], row["down_distinct"], row["down_receivers"]) == (2 * size, 3 * size, 2 * 3 * size)


def test_one_model_is_announced() -> None:
    """Several are not."""
    assert "FedAvg" in hypcluster.Hyper(c=1).degenerate()[0]
    assert hypcluster.Hyper().degenerate() == []
