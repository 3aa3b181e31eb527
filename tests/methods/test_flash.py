"""FLASH: its server against the formulas, and clients that stop early."""

import numpy as np
import torch

from bench.method import Message
from methods.flash import Flash, ServerHyper
from tests.engine.problems import generic, run, toy
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5]


def test_the_rule_follows_the_formulas() -> None:
    """Two clients, three rounds."""
    rule = {"name": "flash", "eta": 0.05, "beta1": 0.6, "beta2": 0.7, "tau": 0.01}
    federation = toy("fedavg", sizes=SIZES, server=rule, **PLAIN)
    run(federation, 3)
    x = initial(federation)
    m, v, d = np.zeros((3, 21))
    for t in range(3):
        sent = [descend(x, local_batches(SIZES, t, i)) for i in range(2)]
        delta, before = np.average(sent, axis=0, weights=SIZES) - x, v
        m = 0.6 * m + 0.4 * delta
        v = 0.7 * v + 0.3 * delta**2
        beta3 = before / (abs(delta**2 - v) + before)
        d = beta3 * d + (1 - beta3) * (delta**2 - v)
        x = x + 0.05 * m / (np.sqrt(v) - d + 0.01)
    near(generic(federation), x)


def test_a_weight_that_never_moved_stays() -> None:
    """0 / 0 in beta3 is no number: all updates are 0 here."""
    sent = Message(0, {"w": torch.ones(2)}, 1.0, 0)
    moved, state = Flash(ServerHyper()).update({}, torch.ones(2), [sent], "w")
    assert torch.equal(moved, torch.ones(2))
    assert torch.equal(state["d"], torch.zeros(2))


def test_clients_stop_where_an_epoch_gains_little() -> None:
    """No gain is large enough: two epochs, as the first has nothing before it. Any gain is, and none is lost: all."""

    def epochs(**hp: float) -> int:
        federation = toy("flash", sizes=[20], hp={"epochs": 4, **hp}, batch_size=4)
        federation.advance()
        return federation.work["steps"] // 4  # 16 of 20 samples train

    assert epochs(gamma=1e9) == 2
    assert epochs(gamma=0.0) == 4
