"""pFedFDA against scipy's Gaussians: Bayes' rule, estimates, the share that halves choose, and the rounds."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from bench.model_call import Forward
from tests.engine.problems import run, toy
from tests.methods.by_autograd import descend_on, features
from tests.methods.reference import PLAIN, Array, initial, local_batches, local_data, near

SIZES = [21, 14]
Gaussians = tuple[Array, Array]


def shrunk(covariance: Array) -> Array:
    d = len(covariance)
    return (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / d * np.eye(d)


def posterior(z: Array, of: Gaussians, prior: Array) -> Array:
    """Bayes' rule, `[samples, classes]`."""
    means, covariance = of
    density = np.stack([multivariate_normal(m, shrunk(covariance)).pdf(z) for m in means], 1)
    return prior * density / (prior * density).sum(1, keepdims=True)


def prior_of(y: Array) -> Array:
    share = y.mean(0) + 1e-4
    return share / share.sum()


def own(z: Array, y: Array, means: Array) -> Gaussians:
    """Class by class; a class of at most two samples is centred where the global one is."""
    labels, center = y.argmax(1), means.copy()
    scatter = np.zeros((3, 3))
    for c in range(3):
        mine = z[labels == c]
        if len(mine) > 2:
            center[c] = mine.mean(0)
        for row in mine:
            scatter += np.outer(row - center[c], row - center[c])
    return center, scatter / max(len(z) - 1, 1) + np.eye(3)


def between(a: Gaussians, b: Gaussians, share: float) -> Gaussians:
    return share * a[0] + (1 - share) * b[0], share * a[1] + (1 - share) * b[1]


def chosen(z: Array, y: Array, known: Gaussians, prior: Array) -> float:
    labels = y.argmax(1)
    halves: list[list[int]] = [[], []]
    for c in range(3):
        at = np.flatnonzero(labels == c)
        if len(at) > 1:
            halves[0] += list(at[0::2])
            halves[1] += list(at[1::2])
    shares = np.linspace(0, 1, 21)
    costs = np.zeros(21)
    for fit, held in (halves, halves[::-1]):
        fitted = own(z[fit], y[fit], known[0])
        for k, share in enumerate(shares):
            p = posterior(z[held], between(fitted, known, share), prior)
            costs[k] -= np.log((p * y[held]).sum(1)).mean()
    return float(shares[costs.argmin()])


def fitted(w: Array, x: Array, y: Array, known: Gaussians, beta: float | None) -> tuple[Gaussians, float]:
    z, prior = features(torch.tensor(w), torch.tensor(x)).numpy(), prior_of(y)
    share = chosen(z, y, known, prior) if beta is None else beta
    return between(own(z, y, known[0]), known, share), share


@pytest.mark.parametrize("beta", [None, 0.0, 1.0])
def test_follows_the_formulas(beta: float | None) -> None:
    """Two clients, three rounds, with a share that halves choose or a fixed one; then all probabilities are Bayes'."""
    federation = toy("pfedfda", sizes=SIZES, hp={"beta": beta}, **PLAIN)
    drawn = federation.server.state["means"].numpy()
    known: Gaussians = (drawn, np.eye(3))
    body, shares = initial(federation)[:12], []
    run(federation, 3)
    data = [local_data(SIZES, i) for i in range(2)]
    weights = np.array(SIZES) / sum(SIZES)
    for t in range(3):
        sent: list[tuple[Array, Array, Array]] = []
        for i, (x, y) in enumerate(data):
            prior = torch.tensor(prior_of(y))
            inverse, center = torch.tensor(np.linalg.inv(shrunk(known[1]))), torch.tensor(known[0])

            def unlikely(
                v: Tensor, bx: Tensor, by: Tensor, m: Tensor = center, s: Tensor = inverse, p: Tensor = prior
            ) -> Tensor:
                away = features(v, bx).unsqueeze(1) - m
                joint = p.log() - torch.einsum("nci,ij,ncj->nc", away, s, away) / 2
                return -(by * joint.log_softmax(1)).sum(1).mean()

            w = descend_on(np.concatenate([body, np.zeros(9)]), local_batches(SIZES, t, i), unlikely)
            gaussians, share = fitted(w, x, y, known, beta)
            shares.append(share)
            sent.append((w[:12], *gaussians))
        body = sum(k * one[0] for k, one in zip(weights, sent, strict=True))
        known = tuple(sum(k * one[j] for k, one in zip(weights, sent, strict=True)) for j in (1, 2))  # type: ignore[assignment]
    assert any(0 < share < 1 for share in shares) == (beta is None)  # of the grid, not only its ends
    state = federation.server.state
    near(state["body"].weights, body)
    near(state["means"], known[0])
    near(state["covariance"], known[1])
    probe = np.random.default_rng(0).normal(size=(7, 4))
    z = features(torch.tensor(body), torch.tensor(probe)).numpy()

    def said(model) -> Array:  # type: ignore[no-untyped-def]
        return np.asarray(Forward()(model, torch.tensor(probe), stats="frozen").softmax(1).numpy())

    generic = federation.evaluator.generic(federation.version, {})
    np.testing.assert_allclose(said(generic), posterior(z, known, np.full(3, 1 / 3)), rtol=1e-9)
    for i, model in federation.evaluator.personal(3).items():
        gaussians, _ = fitted(np.concatenate([body, np.zeros(9)]), *data[i], known, beta)
        np.testing.assert_allclose(said(model), posterior(z, gaussians, prior_of(data[i][1])), rtol=1e-9)


def test_new_clients_train_nothing() -> None:
    """However many epochs they may: they need their samples' Gaussians only."""
    federation = toy("pfedfda", sizes=[9, 5, 12], new_clients=1, new_client_epochs=[0, 3], rounds=1)
    metrics = run(federation, 1).metrics
    found = {m: [r["value"] for r in metrics if r["metric"] == m] for m in ("new0", "new3")}
    assert found["new0"] == found["new3"] != []
