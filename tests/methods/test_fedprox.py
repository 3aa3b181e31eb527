"""FedProx against its formula and where it is FedAvg."""

import numpy as np

from tests.engine.problems import generic, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES = [9, 5]


def test_follows_the_formula() -> None:
    """Two clients, two rounds: the proximal gradient is mu (w - w^t), of the squared norm."""
    federation = toy("fedprox", sizes=SIZES, hp={"mu": 0.8}, **PLAIN)
    run(federation, 2)
    w = initial(federation)
    for t in range(2):
        sent = []
        for i in range(2):
            local = w
            for x, y in local_batches(SIZES, t, i):
                local = local - LR * (gradient(local, x, y) + 0.8 * (local - w))
            sent.append(local)
        w = np.average(sent, axis=0, weights=SIZES)
    near(generic(federation), w)
