"""FedBABU against its formulas and at its extremes."""

import numpy as np
import torch

from tests.engine.problems import everything, generic, personal, remarks, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]
BODY = np.arange(21) < 12


def test_follows_the_formulas() -> None:
    """Two clients, two rounds on the body, then fine-tuning of everything; decay moves trained weights only."""
    hp = {"fine_tune_epochs": 2, "fine_tune_lr": 0.05}
    federation = toy("fedbabu", sizes=SIZES, hp=hp, **PLAIN, weight_decay=0.3)
    run(federation, 2)
    w = initial(federation)
    for t in range(2):
        sent = []
        for i in range(2):
            local = w
            for x, y in local_batches(SIZES, t, i):
                local = local - LR * BODY * (gradient(local, x, y) + 0.3 * local)
            sent.append(local)
        w = np.average(sent, axis=0, weights=SIZES)
    near(federation.server.state["body"].weights, w[BODY])
    tuned = []
    for i in range(2):
        local = w
        for x, y in local_batches(SIZES, 2, i, epochs=2):
            local = local - 0.05 * (gradient(local, x, y) + 0.3 * local)
        near(personal(federation)[i], local)
        tuned.append(local)
    near(generic(federation), np.average(tuned, axis=0, weights=SIZES))


def test_fine_tuning_is_thrown_away() -> None:
    """Looking at the models changes no state, and the head is that of the start for ever."""
    federation = toy("fedbabu")
    for _ in range(2):
        federation.advance()
    before = everything(federation)
    federation.evaluate()
    after = everything(federation)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    head = federation.server.initial_model().part("head").weights
    assert all(torch.equal(federation.clients[i].state["head"].weights, head) for i in federation.clients.ids)
    assert all(not torch.allclose(w[12:], head) for w in personal(federation).values())


def test_without_fine_tuning_all_models_are_one() -> None:
    """PM = GM = the aggregated body under the initial head; the cell says so."""
    federation = toy("fedbabu", hp={"fine_tune_epochs": 0})
    run(federation, 2)
    head = federation.server.initial_model().part("head").weights
    expected = torch.cat([federation.server.state["body"].weights, head])
    assert all(torch.equal(w, expected) for w in personal(federation).values())
    torch.testing.assert_close(generic(federation), expected, rtol=0, atol=1e-14)
    assert remarks(federation)
    assert not remarks(toy("fedbabu"))
