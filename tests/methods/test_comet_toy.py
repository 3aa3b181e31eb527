"""COMET's linear regression: the engine against the closed form, and Theorem IV.7 as it should read."""

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

Array = npt.NDArray[np.float64]

SAMPLES, LAMBDA = 100, 50.0
VARIANCES = [0.5, 1.0, 4.0, 9.0]


@pytest.fixture
def toy() -> Any:
    """The example; imported when it is used, for its method is no method for the tests that walk over all of them."""
    return importlib.import_module("docs.examples.comet_toy")


def regression(seed: int, clients: int) -> tuple[list[tuple[Array, Array]], Array]:
    """Clients' inputs and targets, and public inputs, in float32's numbers, as the engine reads them."""
    rng = np.random.default_rng(seed)

    def rounded(values: Array) -> Array:
        return values.astype(np.float32).astype(np.float64)

    lines = rng.normal(0, [[5.0] * 2] * (clients - 1) + [[200.0] * 2])
    inputs = [rounded(rng.uniform(-10, 10, (SAMPLES, 2))) for _ in lines]
    private = [(x, rounded(x @ w + rng.normal(size=SAMPLES))) for x, w in zip(inputs, lines, strict=True)]
    return private, rounded(rng.uniform(-10, 10, (SAMPLES, 2)))


def closed_form(x: Array, public: Array, own: Array, target: Array, lam: float) -> Array:
    """(X'X + lam P'P)^-1 (X'X own + lam P'P target), the paper's solution of the pulled regression."""
    a, b = x.T @ x, lam * public.T @ public
    return np.asarray(np.linalg.solve(a + b, a @ own + b @ target))


@pytest.mark.parametrize(
    ("clusters", "groups"),
    [
        pytest.param(1, [[0, 1, 2]], marks=pytest.mark.long),
        (2, [[0, 1], [2]]),
        pytest.param(3, [[0], [1], [2]], marks=pytest.mark.long),
    ],
)
def test_a_round_of_the_engine_ends_at_the_closed_form(toy: Any, clusters: int, groups: list[list[int]]) -> None:
    private, public = regression(seed=1, clients=3)
    alone = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in private]
    found = toy.pulled(private, public, alone, lam=LAMBDA, clusters=clusters)
    for group in groups:
        target = np.mean([alone[i] for i in group], axis=0)
        for i in group:
            expected = closed_form(private[i][0], public, alone[i], target, LAMBDA)
            np.testing.assert_allclose(found[i], expected, rtol=1e-8)


@pytest.mark.long
def test_figure_2(toy: Any) -> None:
    """One cluster drags clients 1 and 2 tens of times as far from their lines as two do; the stranger stays alone."""
    found = toy.figure(seed=0)

    def distances(name: str) -> list[float]:
        return [float(np.linalg.norm(w - true)) for w, true in zip(found[name], found["true"], strict=True)]

    one, two, alone, together = map(distances, ["COMET, c = 1", "COMET, c = 2", "alone", "FedAvg (all data)"])
    assert min(one[:2]) > 20 * max(two[:2])
    assert min(together[:2]) > 20 * max(two[:2])
    assert two[2] == pytest.approx(alone[2], abs=1e-6)


def weights(beta: float, sigma2: float, v2: list[float]) -> Array:
    """Theorem IV.7: alpha_i = B / (sigma^2 + beta v_i^2) with B = 1 / sum_i 1 / (sigma^2 + beta v_i^2), for every k.

    The printed B_k = A_k (sigma^2 + beta v_k^2) / (sigma^2 + A_k beta v_k^2) drops a term: its denominator should be
    sigma^2 + beta v_k^2 + A_k, where 1 / A_k is the sum over the other clients.
    """
    inverse = 1 / (sigma2 + beta * np.array(v2))
    return inverse / inverse.sum()


def posterior_mean(alone: Array, beta: float, sigma2: float, v2: list[float]) -> Array:
    """Of w_i = theta + N(0, v_i^2), theta anywhere, given fits N(w_i, sigma^2 / beta): a least-squares problem."""
    k, own = len(alone), np.sqrt(beta / sigma2)
    prior = np.append(np.eye(k), -np.ones((k, 1)), axis=1) / np.sqrt(v2)[:, None]
    rows = np.concatenate([prior, np.eye(k, k + 1) * own])
    return np.asarray(np.linalg.lstsq(rows, np.append(np.zeros(k), alone * own), rcond=None)[0][:k])


def pulled_mean(alone: Array, beta: float, sigma2: float, v2: list[float], nu: float) -> Array:
    """w_k / (1 + lam nu / beta) + (sum_i alpha_i w_i) / (1 + beta / (lam nu)) at lam_k = sigma^2 / (v_k^2 nu)."""
    lam = sigma2 / (np.array(v2) * nu)
    return alone / (1 + lam * nu / beta) + (weights(beta, sigma2, v2) @ alone) / (1 + beta / (lam * nu))


positive = st.floats(0.1, 10)


@given(st.lists(st.tuples(positive, st.floats(-10, 10)), min_size=2, max_size=5), positive, positive, positive)
def test_theorem_iv_7_corrected(clients: list[tuple[float, float]], beta: float, sigma2: float, nu: float) -> None:
    """The weights sum to 1, and with the lambda of each client the pulled fit is the posterior mean."""
    v2, alone = [v for v, _ in clients], np.array([w for _, w in clients])
    assert weights(beta, sigma2, v2).sum() == pytest.approx(1)
    expected = posterior_mean(alone, beta, sigma2, v2)
    np.testing.assert_allclose(pulled_mean(alone, beta, sigma2, v2, nu), expected, rtol=1e-7, atol=1e-7)


def test_the_printed_weights_do_not_sum_to_1() -> None:
    beta, sigma2, k = 3.0, 2.0, 1
    own = sigma2 + beta * np.array(VARIANCES)
    a = 1 / (1 / np.delete(own, k)).sum()
    assert (a * own[k] / (own[k] + a) / own).sum() == pytest.approx(1)  # the corrected B_k
    assert (a * own[k] / (sigma2 + a * beta * VARIANCES[k]) / own).sum() == pytest.approx(0.782, abs=5e-4)


@pytest.mark.long
def test_with_equal_variances_the_engine_finds_the_posterior_mean(toy: Any) -> None:
    """All weights are then 1 / K: one cluster. X'X = beta I and P'P = nu I for inputs of ±1 and ±2."""
    signs = np.array([[1.0, 1.0], [1.0, -1.0]] * (SAMPLES // 2))
    beta, nu, sigma2, v2 = float(SAMPLES), 4.0 * SAMPLES, 2.0, [0.25] * 3
    alone = [np.array([1.0, -2.0]), np.array([1.5, 0.5]), np.array([-0.25, 3.0])]
    private = [(signs, signs @ w) for w in alone]
    found = toy.pulled(private, 2 * signs, alone, lam=sigma2 / (v2[0] * nu), clusters=1)
    for axis in range(2):
        expected = posterior_mean(np.array([w[axis] for w in alone]), beta, sigma2, v2)
        np.testing.assert_allclose([w[axis] for w in found], expected, rtol=1e-9)
