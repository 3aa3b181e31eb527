"""FedADMM against the paper's form with its prices, and FedDyn for full participation."""

import numpy as np
import pytest
import torch

from tests.engine.problems import generic, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, near

SIZES, RHO, ETA = [9, 5, 7], 0.4, 0.7


def test_follows_the_algorithm() -> None:
    """Two of three clients in each of four rounds, with y_i and the messages as the paper has them."""
    federation = toy("fedadmm", sizes=SIZES, hp={"rho": RHO, "eta": ETA}, participation=0.67, **PLAIN)
    theta = initial(federation)
    w, y = [theta] * 3, [np.zeros(21)] * 3
    for t in range(4):
        run(federation, 1)
        messages = []
        for i in federation.server.selected:
            local = theta
            for x, target in local_batches(SIZES, t, i):
                local = local - LR * (gradient(local, x, target) + y[i] + RHO * (local - theta))
            price = y[i] + RHO * (local - theta)
            messages.append((local - w[i]) + (price - y[i]) / RHO)
            w[i], y[i] = local, price
        theta = theta + ETA * np.mean(messages, axis=0)
    assert len(messages) == 2
    near(generic(federation), theta)


@pytest.mark.long
def test_with_everybody_it_is_feddyn() -> None:
    """With eta 1 and rho as FedDyn's alpha, to rounding; with half of the clients it is not."""
    for participation, same in ((1.0, True), (0.5, False)):
        a = toy("fedadmm", hp={"rho": 0.3}, participation=participation, model="test_norm")
        b = toy("feddyn", hp={"alpha": 0.3}, participation=participation, model="test_norm")
        run(a, 4)
        run(b, 4)
        assert torch.allclose(generic(a), generic(b), rtol=1e-9, atol=1e-9) == same
