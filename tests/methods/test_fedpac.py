"""FedPAC against its algorithm in plain torch, and its mixtures against all supports."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.rng import generator
from methods.fedpac import DROPPED, collaboration, least, variance
from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import descend_on, features, logits, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, local_data

SIZES = [9, 5, 7]
LAM = 0.7


def best(q: Array) -> Array:
    """The distribution with the smallest a' Q a: the best of the optima on all supports."""
    n, value, found = len(q), np.inf, np.ones(len(q))
    for size in range(1, n + 1):
        for support in itertools.combinations(range(n), size):
            inside = np.ix_(support, support)
            part = np.linalg.solve(q[inside], np.ones(size))
            a = np.zeros(n)
            a[list(support)] = part / part.sum()
            if (a >= 0).all() and a @ q @ a < value:
                value, found = float(a @ q @ a), a
    found = np.where(found < DROPPED, 0.0, found)
    return found / found.sum()


def shares_of(v: list[float], h: list[Array]) -> list[Array]:
    """Of all heads in each client's, entry by entry of its matrix."""
    n = len(v)
    rows = []
    for i in range(n):
        q = np.array([[((h[i] - h[j]) * (h[i] - h[k])).sum() + v[j] * (j == k) for k in range(n)] for j in range(n)])
        rows.append(best(q))
    return rows


def of_classes(z: Array, y: Array) -> tuple[Array, Array]:
    """Class means `[3, 3]` and counts."""
    count = y.sum(0)
    return (y.T @ z) / np.maximum(count, 1)[:, None], count


def test_follows_the_algorithm() -> None:
    """Three clients, three rounds; in the first no prototype is known yet."""
    federation = toy("fedpac", sizes=SIZES, hp={"lam": LAM}, **PLAIN)
    run(federation, 3)
    start = initial(federation)
    body, heads = start[:12], [start[12:]] * 3
    prototypes, known = np.zeros((3, 3)), np.zeros(3)
    for t in range(3):
        bodies, v, h, sums, counts = [], [], [], np.zeros((3, 3)), np.zeros(3)
        for i in range(3):
            w = np.concatenate([body, heads[i]])
            x, y = local_data(SIZES, i)
            z = features(torch.tensor(w), torch.tensor(x)).numpy()
            mean, count = of_classes(z, y)
            h.append(mean * (count / len(x))[:, None])
            v.append((np.square(z).sum() / len(x) - np.square(h[i]).sum()) / len(x))

            def head_alone(leaf: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                return plain(torch.cat([leaf[:12].detach(), leaf[12:]]), a, b)

            def pulled(
                leaf: torch.Tensor, a: torch.Tensor, b: torch.Tensor, p: Array = prototypes, k: Array = known
            ) -> torch.Tensor:
                leaf = torch.cat([leaf[:12], leaf[12:].detach()])
                label = b.argmax(1)
                distance = (features(leaf, a) - torch.tensor(p)[label]).square().mean(1)
                likelihood = (b * torch.log_softmax(logits(leaf, a), 1)).sum(1)
                return (LAM * torch.tensor(k)[label] * distance - likelihood).mean()

            w = descend_on(w, local_batches(SIZES, t, i), head_alone)
            w = descend_on(w, local_batches(SIZES, t, i), pulled)
            bodies.append(w[:12])
            heads[i] = w[12:]
            mean, count = of_classes(features(torch.tensor(w), torch.tensor(x)).numpy(), y)
            sums, counts = sums + mean * count[:, None], counts + count
        body = np.average(bodies, axis=0, weights=SIZES)
        prototypes = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], prototypes)
        known = np.maximum(known, counts > 0)
        heads = [sum(a * head for a, head in zip(shares, heads, strict=True)) for shares in shares_of(v, h)]
    for i, w in personal(federation).items():
        np.testing.assert_allclose(w.numpy(), np.concatenate([body, heads[i]]), atol=1e-7)  # of shares solved for


@given(st.integers(2, 6), st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_mixture_is_the_best_distribution(n: int, draw: int) -> None:
    """Against the optima on all supports."""
    rng = generator("tests", "fedpac", draw)
    root = rng.normal(size=(n, n))
    q = root @ root.T + np.diag(rng.uniform(0.01, 1, n))
    np.testing.assert_allclose(least(q), best(q), atol=1e-6)


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_client_with_a_single_sample_has_a_mixture(draw: int) -> None:
    """In float32 its variance is 0 up to rounding, which may be below 0; then no matrix of a row would be positive."""
    z = torch.from_numpy(generator("tests", "fedpac", draw).normal(size=(6, 64)).astype("float32")) * 10
    variances = [variance(torch.ones(1), row[None], torch.outer(row, row)[None]) for row in z]
    assert all(v.item() >= 0 for v in variances)
    weights = collaboration(variances, list(z[:, None]))
    np.testing.assert_allclose(weights, np.eye(6), atol=1e-3)
