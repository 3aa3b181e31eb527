"""FedLC against its formula, and where it is FedAvg."""

import numpy as np
import torch

from tests.engine.problems import generic, run, toy
from tests.methods.reference import (
    PLAIN,
    Array,
    backward,
    initial,
    local_batches,
    local_data,
    logits,
    near,
    softmax,
)  # fmt: skip

SIZES = [9, 5]


def test_follows_the_formula() -> None:
    """Two clients, three rounds."""
    federation = toy("fedlc", sizes=SIZES, hp={"tau": 0.6}, **PLAIN)
    run(federation, 3)
    w = initial(federation)
    for t in range(3):
        sent: list[Array] = []
        for i in range(2):
            counts = local_data(SIZES, i)[1].sum(0)
            with np.errstate(divide="ignore"):
                margins = 0.6 / np.sqrt(np.sqrt(counts))  # infinite for a class that is not there
            v = w
            for x, target in local_batches(SIZES, t, i):
                p = softmax(logits(v, x) - margins)
                v = v - 0.1 * backward(v, x, (p - target) / len(x))
            sent.append(v)
        w = (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), w)


def test_equal_counts_are_fedavg() -> None:
    """A margin that all classes share is none."""
    federation, fedavg = toy("fedlc", sizes=[6], **PLAIN), toy("fedavg", sizes=[6], **PLAIN)
    for one in (federation, fedavg):
        one.clients[0].label_counts = torch.tensor([2, 2, 2])
    run(federation, 2)
    run(fedavg, 2)
    torch.testing.assert_close(generic(federation), generic(fedavg), rtol=1e-10, atol=1e-12)


def test_an_absent_class_is_not_pushed_away() -> None:
    """A client of one class: its margin to the others is 100 tau, and it teaches nothing."""
    federation = toy("fedlc", sizes=[1], **PLAIN)
    run(federation, 2)
    torch.testing.assert_close(generic(federation), federation.server.initial_model().weights, rtol=0, atol=1e-12)
