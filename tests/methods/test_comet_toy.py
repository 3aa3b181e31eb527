"""COMET's linear regression: the engine against the closed form, and the paper's figure 2."""

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.float64]

SAMPLES, LAMBDA = 100, 50.0


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


def test_a_round_of_the_engine_ends_at_the_closed_form() -> None:
    """Two clusters, one of two clients and one of the third."""
    private, public = regression(seed=1, clients=3)
    alone = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in private]
    found = toy().pulled(private, public, alone, lam=LAMBDA, clusters=2)
    for group in ([0, 1], [2]):
        target = np.mean([alone[i] for i in group], axis=0)
        for i in group:
            expected = closed_form(private[i][0], public, alone[i], target, LAMBDA)
            np.testing.assert_allclose(found[i], expected, rtol=1e-8)


@pytest.mark.long
def test_figure_2() -> None:
    """One cluster drags clients 1 and 2 tens of times as far from their lines as two do; the stranger stays alone."""
    found = toy().figure(seed=0)

    def distances(name: str) -> list[float]:
        return [float(np.linalg.norm(w - true)) for w, true in zip(found[name], found["true"], strict=True)]

    one, two, alone, together = map(distances, ["COMET, c = 1", "COMET, c = 2", "alone", "FedAvg (all data)"])
    assert min(one[:2]) > 20 * max(two[:2])
    assert min(together[:2]) > 20 * max(two[:2])
    assert two[2] == pytest.approx(alone[2], abs=1e-6)
