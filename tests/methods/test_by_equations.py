"""Methods that no public library has as their paper says, by their equations once more: in numpy, on the libraries'
problem, with slopes by complex steps and relations by scipy. Nothing is shared with the engine but the start."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg

from tests.engine.problems import generic, personal
from tests.methods.reference import Array
from tests.methods.test_outside import PROBLEM, STARTS, federation, near

SIZES = PROBLEM["sizes"]
SHAPES = [(PROBLEM["hidden"], 4), (PROBLEM["hidden"],), (PROBLEM["classes"], PROBLEM["hidden"]), (PROBLEM["classes"],)]
CUTS = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
HEAD = CUTS[1]
CLIENTS = list(zip(*(np.split(np.array(PROBLEM[name]), np.cumsum(SIZES)[:-1]) for name in ("x", "y")), strict=True))
START = STARTS[0].numpy()


def logits(w: Array, x: Array) -> Array:
    inner, shift, outer, last = (p.reshape(s) for p, s in zip(np.split(w, CUTS), SHAPES, strict=True))
    hidden = np.float32(x) @ inner.T + shift
    return np.asarray(np.where(hidden.real > 0, hidden, 0) @ outer.T + last)


def entropy(w: Array, x: Array, y: Array) -> complex:
    z = logits(w, x)
    return complex((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean())


def slope(function: Callable[[Array], complex], w: Array) -> Array:
    """The gradient to the last digit: no difference is taken, so nothing cancels."""
    steps = np.eye(len(w)) * 1e-40j
    return np.array([function(w + step).imag / 1e-40 for step in steps])


def trained(w: Array, client: int, penalty: Callable[[Array], complex] = lambda _: 0.0) -> Array:
    x, y = CLIENTS[client]
    for _ in range(PROBLEM["steps"]):
        w = w - PROBLEM["lr"] * slope(lambda v: entropy(v, x, y) + penalty(v), w)
    return w


def test_elastic_aggregation() -> None:
    """All samples are measured on, so that nothing is drawn."""
    tau, mu = 0.4, 0.6
    ours = federation("elastic", {"tau": tau, "mu": mu, "share": 1.0})
    w, omega = START, [np.zeros(len(START))] * 4
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
        for i, (x, _) in enumerate(CLIENTS):
            moves = slope(lambda v, x=x: complex((logits(v, x) ** 2).sum(1).mean()), w)  # type: ignore[misc]
            omega[i] = mu * omega[i] + (1 - mu) * abs(moves)
        towards = np.average([trained(w, i) - w for i in range(4)], axis=0, weights=SIZES)
        sensitivity = np.average(omega, axis=0, weights=SIZES)
        zeta = [1 + tau - part / part.max() for part in np.split(sensitivity, CUTS)]
        w = w + np.concatenate(zeta) * towards
    near(generic(ours), w)


@pytest.mark.parametrize("relation", ["learned", "laplacian"])
def test_fedmtl(relation: str) -> None:
    """Down the slope of tr(W' Omega W) itself, one client's row after the other's."""
    lam = 0.3
    ours = federation("fedmtl", {"lam": lam, "relation": relation})
    models = np.tile(START, (4, 1))
    for _ in range(PROBLEM["rounds"]):
        ours.advance()
        omega = np.eye(4) - 1 / 4
        if relation == "learned":
            root = scipy.linalg.sqrtm(models @ models.T + 1e-15 * np.eye(4)).real
            omega = scipy.linalg.inv(root / np.trace(root) + np.eye(4) / 4) / 4
        after = []
        for i in range(4):

            def penalty(v: Array, i: int = i, omega: Array = omega, models: Array = models) -> complex:
                rows = models.astype(complex)
                rows[i] = v
                return complex(lam / 2 * np.trace(rows.T @ omega @ rows))

            after.append(trained(models[i], i, penalty))
        models = np.array(after)
    for i, w in personal(ours).items():
        close = 1e-7 if relation == "learned" else 1e-12  # a root of a matrix that is nearly singular at first
        np.testing.assert_allclose(w.numpy(), models[i], rtol=close, atol=close)


def test_pfedsim() -> None:
    """One round of FedAvg, and two by the likeness of heads."""
    ours = federation("pfedsim", {"warmup": 1})
    common = np.average([trained(START, i) for i in range(4)], axis=0, weights=SIZES)
    starts = np.tile(common, (4, 1))
    ours.advance()
    near(ours.server.state["model"].weights, common)
    for _ in range(2):
        ours.advance()
        models = np.array([trained(w, i) for i, w in enumerate(starts)])
        starts = models.copy()
        for i in range(4):
            shares = np.zeros(4)
            for j in range(4):
                a, b = models[i, HEAD:], models[j, HEAD:]
                cosine = (a @ b) / np.sqrt((a @ a) * (b @ b))
                shares[j] = 1.0 if i == j else max(0.0, -np.log(1 - cosine))
            starts[i, :HEAD] = shares @ models[:, :HEAD] / shares.sum()
    for i, w in personal(ours).items():
        near(w, models[i])
    for i, body in ours.server.state["bodies"].items():
        near(body.weights, starts[i, :HEAD])
