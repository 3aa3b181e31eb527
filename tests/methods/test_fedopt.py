"""FedOpt and server momentum, the rules that keep something from round to round, against their formulas."""

import numpy as np
import pytest
import torch

from tests.engine.problems import generic, personal, remarks, run, toy
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5]
HP = {"eta": 0.05, "beta1": 0.6, "beta2": 0.7, "tau": 0.01}


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_follows_the_formulas(kind: str) -> None:
    """Two clients, three rounds."""
    federation = toy("fedopt", sizes=SIZES, hp={"kind": kind, **HP}, **PLAIN)
    run(federation, 3)
    x = initial(federation)
    m, v = np.zeros(21), np.full(21, 0.01**2)
    for t in range(3):
        sent = [descend(x, local_batches(SIZES, t, i)) for i in range(2)]
        d = np.average(sent, axis=0, weights=SIZES) - x
        m = 0.6 * m + 0.4 * d
        if kind == "adagrad":
            v = v + d**2
        elif kind == "yogi":
            v = np.where(d**2 > v, v + 0.3 * d**2, v - 0.3 * d**2)
        else:
            v = 0.7 * v + 0.3 * d**2
        x = x + 0.05 * m / (np.sqrt(v) + 0.01)
    near(generic(federation), x)


@pytest.mark.parametrize(("kind", "momentum"), [("adam", 0.9), ("yogi", 0.9), ("adagrad", 0.0)])
def test_by_default_adagrad_alone_has_no_momentum(kind: str, momentum: float) -> None:
    """As in the paper's experiments."""
    default, explicit = (toy("fedopt", hp={"kind": kind, **hp}) for hp in ({}, {"beta1": momentum}))
    for federation in (default, explicit):
        run(federation, 2)
    assert torch.equal(generic(default), generic(explicit))


@pytest.mark.long
def test_the_rule_under_fedavg_is_the_method() -> None:
    """Bit for bit, running statistics included; momentum as a rule is FedAvgM."""
    for rule, method in (("fedopt", "fedopt"), ("momentum", "fedavgm")):
        one = toy("fedavg", server={"name": rule}, model="test_norm")
        other, plain = toy(method, model="test_norm"), toy("fedavg", model="test_norm")
        for federation in (one, other, plain):
            run(federation, 3)
        a, b, c = (f.server.state["model"] for f in (one, other, plain))
        assert torch.equal(a.weights, b.weights)
        assert torch.equal(a.buffers, b.buffers)
        assert not torch.allclose(a.weights, c.weights)


def test_every_entry_has_its_own_moments() -> None:
    """FedPer declares a body, FedRoD with a hyper-network a model and the network."""
    federation = toy("fedrod", hp={"head": "hyper"}, server={"name": "momentum"})
    run(federation, 2)
    kept = federation.server.state["rule"]
    assert kept["model"]["velocity"].shape != kept["hyper"]["velocity"].shape
    body, plain = toy("fedper", server={"name": "fedopt"}), toy("fedper")
    run(body, 2)
    run(plain, 2)
    assert all(not torch.equal(personal(body)[i], personal(plain)[i]) for i in personal(body))


def test_degenerate_momentum_is_announced_and_is_fedavg() -> None:
    federation, plain = toy("fedavg", server={"name": "momentum", "beta": 0.0}), toy("fedavg")
    run(federation, 2)
    run(plain, 2)
    assert remarks(federation) == ["beta = 0 with server_lr = 1: server momentum is the plain mean"]
    torch.testing.assert_close(generic(federation), generic(plain), rtol=1e-10, atol=1e-12)
