"""FedProx against its formula and where it is FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.problems import BOTH_MODELS, generic, remarks, run, toy
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


@pytest.mark.parametrize("model", BOTH_MODELS)
@pytest.mark.parametrize(
    ("mu", "settings", "is_fedavg"),
    [(0.0, {}, True), (0.5, {"steps": 1}, True), (0.5, {"steps": 2}, False)],
)
def test_where_it_is_fedavg(model: str, mu: float, settings: dict[str, Any], is_fedavg: bool) -> None:
    """Bit for bit in the users' precision: with mu = 0, and with one step a round for every mu."""
    common = {"model": model, "dtype": "float32", **settings}
    federation, fedavg = toy("fedprox", hp={"mu": mu}, **common), toy("fedavg", **common)
    for one in (federation, fedavg):
        run(one, 3)
    assert torch.equal(generic(federation), generic(fedavg)) == is_fedavg
    assert bool(remarks(federation)) == (mu == 0)
