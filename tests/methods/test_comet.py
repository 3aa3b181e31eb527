"""COMET against its formulas, its cost and its toy example, and who has which architecture."""

import importlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bench.federation.setup import architectures
from bench.method import Feed
from bench.models.factory import build
from bench.params import Spec
from bench.settings import Settings
from methods.comet import centroids
from reports.published.comparison import published_table
from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.reference import (
    LR,
    PLAIN,
    PUBLIC,
    PUBLIC_X,
    Array,
    Positions,
    backward,
    batches,
    gradient,
    initial,
    local_batches,
    logits,
    near,
    softmax,
)

SIZES = [9, 5, 7, 12]


def best_clusters(points: list[Array], c: int) -> list[Array]:
    """The centroids of the best of all assignments: c-means without an algorithm."""

    def means(labels: tuple[int, ...]) -> list[Array]:
        return [np.mean([p for p, own in zip(points, labels, strict=True) if own == k], axis=0) for k in labels]

    def cost(labels: tuple[int, ...]) -> float:
        return sum(float(((p - m) ** 2).sum()) for p, m in zip(points, means(labels), strict=True))

    best = min(itertools.product(range(c), repeat=len(points)), key=cost)
    return [means(best)[best.index(k)] for k in dict.fromkeys(best)]


def pull(w: Array, target: Array, positions: Positions) -> Array:
    """Gradient of the mean of ||s - target||^2: with r = s - target, that of the logits is 2 s (r - s.r)."""
    s = softmax(logits(w, PUBLIC_X[positions]))
    r = s - target[positions]
    return backward(w, PUBLIC_X[positions], 2 * s * (r - (s * r).sum(1, keepdims=True)) / len(positions))


def test_follows_the_formulas() -> None:
    """Four clients, two clusters, three rounds."""
    federation = toy("comet", sizes=SIZES, public=PUBLIC, hp={"c": 2, "lam": 3.0, "public_batch": 5}, **PLAIN)
    run(federation, 3)
    own = [initial(federation)] * 4
    centers = [softmax(logits(own[0], PUBLIC_X))]
    feed = Feed("public", 5, order="uniform", stream=1)
    for t in range(3):
        for i, w in enumerate(own):
            s0 = softmax(logits(w, PUBLIC_X))
            target = min(centers, key=lambda m: float(((m - s0) ** 2).sum()))
            private = list(local_batches(SIZES, t, i))
            for (x, y), p in zip(private, batches(feed, 12, 12, len(private), t, i), strict=True):
                w = w - LR * (gradient(w, x, y) + 3.0 * pull(w, target, p))
            own[i] = w
        centers = best_clusters([softmax(logits(w, PUBLIC_X)) for w in own], 2)
    for i, w in enumerate(own):
        near(personal(federation)[i], w)
    near(federation.server.state["centroids"], np.stack(centers))
    assert len(centers) == 2


BY_SIZE = {"by": "size", "models": ("test_linear", "test_norm", "logistic")}


def test_larger_data_sets_are_more_likely_to_have_larger_models() -> None:
    """The client of rank r of N has the last model with probability 1 - r / N, the others with r / 2N each."""
    sizes = [40, 10, 30, 20]
    drawn = [architectures(Settings(method="comet", seed=s, client_models=BY_SIZE), sizes) for s in range(1000)]
    for client, rank in enumerate([4, 1, 3, 2]):
        shares = [np.mean([one[client] == model for one in drawn]) for model in BY_SIZE["models"]]
        np.testing.assert_allclose(shares, [rank / 8, rank / 8, 1 - rank / 4], atol=0.05)
    assert architectures(Settings(method="comet", client_models=["mlp", "logistic"]), sizes) == ["mlp", "logistic"] * 2
    assert architectures(Settings(method="comet", model="logistic"), sizes) == ["logistic"] * 4


def test_the_draw_by_size_is_resolved_in_a_federation() -> None:
    federation = toy("comet", public=PUBLIC, client_models=BY_SIZE, seed=1)
    again = toy("comet", public=PUBLIC, client_models=BY_SIZE, seed=1)
    run(federation, 1)
    expected = architectures(federation.settings, [13, 7, 1, 0, 9, 5])
    assert len(set(expected)) == 3
    for i, w in federation.evaluator.personal(federation.version).items():
        assert w.spec.arch.startswith(expected[i])
        assert again.server.architecture(i) == expected[i]


def printed_cost(method: str, selected: int, **axes: int) -> float:
    """In the paper's Table III."""
    wanted = {"C": selected / 100, **axes}
    rows = [row for row in published_table("comet_t3").rows if (row.method, row.metric) == (method, "comcost")]
    (cost,) = [row.mean for row in rows if wanted.items() <= row.axes.items()]
    assert cost is not None
    return cost


@pytest.mark.parametrize(
    ("selected", "c"),
    [(10, 2), (15, 4), *(pytest.param(*pair, marks=pytest.mark.long) for pair in ((10, 1), (10, 3), (10, 4), (15, 1)))],
)
def test_the_ledger_gives_the_paper_s_communication_cost(selected: int, c: int) -> None:
    """T (m + c) L scalars; the exchange before the first round, which the paper does not count, is m L more.

    All clients start from one model there, so its predictions make one cluster.
    """
    queries, rounds, size = toy_data(samples=2000, classes=10, seed=9), 200, 2000 * 10
    data = toy_data(samples=300, classes=10)
    federation = toy(
        "comet", sizes=[2] * 100, data=data, public=queries, hp={"c": c}, model="logistic", dtype="float32",
        participation=selected / 100, steps=1, batch_size=2, executor="sequential",
    )  # fmt: skip
    run(federation, 2)
    first, second = ((row["up"] + row["down_distinct"]) // 4 for row in federation.ledger)
    assert second == (selected + c) * size
    assert first == (selected + 1) * size + selected * size
    assert float(f"{rounds * second:.1e}") == printed_cost("comet", selected, c=c)
    assert float(f"{first + (rounds - 1) * second:.1e}") == printed_cost("comet", selected, c=c)


@pytest.mark.parametrize("selected", [10, 15])
def test_the_paper_s_cost_of_fedavg_is_that_of_our_vgg11(selected: int) -> None:
    """T (m + 1) P scalars, buffers apart."""
    size = Spec.of("vgg11", build("vgg11", (3, 32, 32), 10)).d
    assert float(f"{200 * (selected + 1) * size:.2e}") == printed_cost("fedavg", selected)


def test_clusters_do_not_depend_on_the_order() -> None:
    """Of the clients, or of the entries of their matrices; one cluster is the plain mean."""
    rng = np.random.default_rng(1)
    centers = rng.random((3, 1, 6, 2))
    points = torch.from_numpy((centers + 0.01 * rng.random((3, 4, 6, 2))).reshape(12, 6, 2))
    found = centroids(list(points), 3)
    shuffled = centroids(list(points[rng.permutation(12)]), 3)
    assert torch.cdist(found.flatten(1), shuffled.flatten(1)).min(1).values.max() < 1e-12
    torch.testing.assert_close(centroids(list(points.flip(1)), 3), found.flip(1))
    torch.testing.assert_close(centroids(list(points), 1), points.mean(0)[None])


def test_equal_clients_share_a_cluster() -> None:
    """And more clusters than clients are no error."""
    point = torch.full((6, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(centroids([point] * 4, 3), point[None])
    assert len(centroids([point, 2 * point], 5)) == 2


def toy_example() -> Any:
    """Imported when it is used, for its method is no method for the tests that walk over all of them."""
    return importlib.import_module("docs.examples.comet_toy")


@pytest.mark.long
def test_a_round_of_the_toy_example_ends_at_the_closed_form() -> None:
    """(X'X + lam P'P)^-1 (X'X own + lam P'P target), the paper's solution, for a cluster of two clients and of one."""
    rng, lam = np.random.default_rng(1), 50.0

    def as_read(values: Array) -> Array:
        return values.astype(np.float32).astype(np.float64)

    lines = rng.normal(0, [[5.0] * 2, [5.0] * 2, [200.0] * 2])
    inputs = [as_read(rng.uniform(-10, 10, (100, 2))) for _ in lines]
    private = [(x, as_read(x @ w + rng.normal(size=100))) for x, w in zip(inputs, lines, strict=True)]
    public = as_read(rng.uniform(-10, 10, (100, 2)))
    alone = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in private]
    pulled = toy_example().pulled(private, public, alone, lam=lam, clusters=2)
    for i, group in ((0, [0, 1]), (1, [0, 1]), (2, [2])):
        a, b = inputs[i].T @ inputs[i], lam * public.T @ public
        target = np.mean([alone[j] for j in group], axis=0)
        np.testing.assert_allclose(pulled[i], np.linalg.solve(a + b, a @ alone[i] + b @ target), rtol=1e-8)


@pytest.mark.long
def test_figure_2() -> None:
    """One cluster drags clients 1 and 2 tens of times as far from their lines as two do; the stranger stays alone."""
    found = toy_example().figure(seed=0)

    def distances(name: str) -> list[float]:
        return [float(np.linalg.norm(w - true)) for w, true in zip(found[name], found["true"], strict=True)]

    one, two, alone, together = map(distances, ["COMET, c = 1", "COMET, c = 2", "alone", "FedAvg (all data)"])
    assert min(one[:2]) > 20 * max(two[:2])
    assert min(together[:2]) > 20 * max(two[:2])
    assert two[2] == pytest.approx(alone[2], abs=1e-6)
