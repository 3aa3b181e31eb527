"""FedNova against its formulas, and where it is FedAvg."""

import numpy as np

from tests.engine.problems import generic, run, toy
from tests.methods.reference import PLAIN, gradient, initial, local_batches, near

SIZES = [13, 5]


def effective(steps: int, momentum: float) -> float:
    """||a||_1 of SGD with momentum, in the paper's closed form."""
    if momentum == 0:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def expected(start: np.ndarray, rounds: int, momentum: float) -> np.ndarray:
    """Clients of four and two steps an epoch."""
    w = start
    for t in range(rounds):
        change, lengths = [], []
        for i in range(2):
            local, velocity, steps = w, np.zeros(21), 0
            for x, target in local_batches(SIZES, t, i):
                velocity = momentum * velocity + gradient(local, x, target)
                local, steps = local - 0.1 * velocity, steps + 1
            lengths.append(effective(steps, momentum))
            change.append((local - w) / lengths[-1])
        p = np.array(SIZES) / sum(SIZES)
        w = w + (p @ lengths) * (p[0] * change[0] + p[1] * change[1])
    return w


def test_follows_the_formulas() -> None:
    """Without and with momentum."""
    for momentum in (0.0, 0.6):
        federation = toy("fednova", sizes=SIZES, **{**PLAIN, "momentum": momentum})
        run(federation, 3)
        near(generic(federation), expected(initial(federation), 3, momentum))
