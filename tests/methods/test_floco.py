"""Floco against plain torch, its projection in closed form for two endpoints, and FedAvg, Local and Ditto."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.engine.batches import DrawAddress, draw_values
from bench.method import Normal
from methods.subregions import Basis, drawn_point, place
from tests.engine.problems import generic, personal, run, toy, toy_data
from tests.methods.by_autograd import plain
from tests.methods.reference import BATCH, LR, PLAIN, SEED, Array, initial, local_batches, near

SIZES = [9, 5, 7]
RHO, LAM = 0.3, 0.4


def phi(z: float) -> float:
    """The normal distribution function."""
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def points_of(updates: Array) -> Array:
    """Two endpoints: principal components by the covariance, and the segment of the length with the least energy."""
    centred = updates - updates.mean(0)
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :2].T
    vectors *= np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(1)[:, None], 1))
    a, b = (centred @ vectors.T).T
    best, found = math.inf, a
    for z in np.linspace(1e-4, 1, 1000):
        first = np.clip(((a - b) / z + 1) / 2, 0, 1)
        energy = sum(
            1 / max(1e-4, math.sqrt(2) * abs(first[i] - first[j])) ** 2 for i in range(3) for j in range(i + 1, 3)
        )
        if energy < best:
            best, found = energy, first
    return np.stack([found, 1 - found], axis=1)


def at(w: torch.Tensor, point: Array) -> torch.Tensor:
    """The model at a point: 12 weights of the body, and two endpoints of 9."""
    return torch.cat([w[:12], point[0] * w[12:21] + point[1] * w[21:]])


def descend(w: torch.Tensor, t: int, i: int, point: Array | None, center: torch.Tensor, lam: float) -> torch.Tensor:
    """A client's round: batch by batch at a drawn point, with lam/2 times the squared distance from the center."""
    data = list(local_batches(SIZES, t, i))
    drawn = draw_values(Normal((3,)), "point", BATCH, len(data), DrawAddress(SEED, t, i), 0)[:, 0]
    for (x, y), z in zip(data, drawn, strict=True):
        u = np.array([phi(float(v)) for v in z])
        e, s = -np.log(u[:2]), 2 * u[:2] - 1
        here = e / e.sum() if point is None else point + u[2] * RHO * s / np.abs(s).sum()
        v = w.clone().requires_grad_()
        loss = plain(at(v, here), torch.tensor(x), torch.tensor(y)) + lam / 2 * ((v - center) ** 2).sum()
        w = w - LR * torch.autograd.grad(loss, v)[0]
    return w


def test_follows_the_algorithm() -> None:
    """Three clients, four rounds, two endpoints; from the third round on near the clients' points, with own copies."""
    hp = {"endpoints": 2, "tau": 2, "rho": RHO, "lam": LAM}
    federation = toy("floco_plus", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 4)
    start = torch.tensor(np.concatenate([initial(federation), initial(federation, draw=1)[12:]]))
    own: list[torch.Tensor] = [start] * 3
    points: list[Array | None] = [None] * 3
    for t in range(4):
        sent = [descend(start, t, i, points[i], start, 0.0) for i in range(3)]
        own = [descend(own[i], t, i, points[i], start, LAM) for i in range(3)]
        if t == 1:
            points = list(points_of(np.stack([(w - start)[12:].numpy() for w in sent])))
        start = torch.stack([n * w for n, w in zip(SIZES, sent, strict=True)]).sum(0) / sum(SIZES)
    near(generic(federation), at(start, np.array([0.5, 0.5])).numpy())
    for i, w in personal(federation).items():
        point = points[i]
        assert point is not None
        near(w, at(own[i], point).numpy())


def test_points_are_uniform_in_the_simplex_or_near_the_own_one() -> None:
    """Mean and variance of each coordinate are those of a flat Dirichlet distribution; the others lie in the ball."""
    z = torch.randn(20_000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own, one = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64), torch.ones((), dtype=torch.float64)
    free = torch.vmap(lambda row: drawn_point(row, own, one * 0, one * RHO))(z)
    torch.testing.assert_close(free.mean(0), torch.full((4,), 0.25, dtype=torch.float64), atol=0.01, rtol=0)
    torch.testing.assert_close(free.var(0), torch.full((4,), 3 / (16 * 5), dtype=torch.float64), atol=0.002, rtol=0)
    distance = (torch.vmap(lambda row: drawn_point(row, own, one, one * RHO))(z) - own).abs().sum(1)
    assert 0.99 * RHO < float(distance.max()) <= RHO + 1e-12
    assert float(distance.mean()) == pytest.approx(RHO / 2, rel=0.02)


@pytest.mark.long
def test_clients_of_a_kind_get_points_near_each_other() -> None:
    """Two clients have the labels of the other two in another order."""
    data = toy_data()
    y = data.y.copy()
    y[:20] = (y[:20] + 1) % 3
    settings: dict[str, Any] = {"sizes": [10] * 4, "batch_size": 10, "epochs": 5}
    federation = toy("floco", data=replace(data, y=y), hp={"endpoints": 3, "tau": 2}, **settings)
    run(federation, 2)
    points = torch.stack([federation.server.state["points"][i] for i in range(4)])
    torch.testing.assert_close(points.sum(1), torch.ones(4, dtype=torch.float64))
    distance = torch.cdist(points, points)
    assert max(distance[0, 1], distance[2, 3]) < distance[:2, 2:].min()


def test_whoever_comes_later_is_placed_in_the_same_simplex() -> None:
    """Half of the clients take part; with the basis, an update gets the same point whenever it comes."""
    federation = toy("floco", hp={"endpoints": 3, "tau": 1}, sizes=[9, 5, 7, 4], participation=0.5)
    federation.advance()
    first = federation.server.state["points"]
    for _ in range(5):
        federation.advance()
    later = federation.server.state["points"]
    assert len(first) == 2
    assert len(later) > 2
    assert all(torch.equal(later[i], point) for i, point in first.items())
    rows = list(torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    basis = Basis.of(rows, 3)
    torch.testing.assert_close(torch.stack(place(basis, rows)[3:]), torch.stack(place(basis, rows[3:])))
