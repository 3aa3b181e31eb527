"""Plain numpy versions of what the programs are tested against: the linear model, its gradients, its batches."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from bench.data import Partition
from bench.engine.batches import DrawAddress, draw_batches, steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed
from tests.engine.problems import toy_data, toy_partition

Array = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

DATA = toy_data()
PUBLIC = toy_data(samples=12, seed=9)
X, Y = DATA.x.astype(np.float64), np.eye(3)[DATA.y]
PUBLIC_X = PUBLIC.x.astype(np.float64)
SEED, BATCH, LR = 3, 4, 0.1
PLAIN = {"batch_size": BATCH, "lr": LR, "momentum": 0.0, "epochs": 1, "seed": SEED}  # settings of a reference run


def softmax(z: Array) -> Array:
    """Softmax of each row."""
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def logits(w: Array, x: Array) -> Array:
    """The model `test_linear`: 4 features, 3 hidden units, mostly 3 classes; `w` has then 12 + 9 entries."""
    return np.asarray(x @ w[:12].reshape(3, 4).T @ w[12:].reshape(-1, 3).T)


def backward(w: Array, x: Array, d: Array) -> Array:
    """Gradient of a loss whose gradient with respect to the logits is `d [samples, classes]`."""
    inner, head = w[:12].reshape(3, 4), w[12:].reshape(-1, 3)
    return np.concatenate([((d @ head).T @ x).ravel(), (d.T @ (x @ inner.T)).ravel()])


def cross_entropy(w: Array, x: Array, target: Array) -> float:
    """Mean of -sum target log softmax."""
    return float(-(target * np.log(softmax(logits(w, x)))).sum(1).mean())


def gradient(w: Array, x: Array, target: Array) -> Array:
    """Gradient of the mean cross-entropy to rows of targets."""
    return backward(w, x, (softmax(logits(w, x)) - target) / len(x))


def batches(feed: Feed, n: int, widest: int, steps: int, round: int, owner: int) -> Iterator[Positions]:
    """Positions in the owner's list of n samples, batch by batch; `widest` is the size of the largest list."""
    width = min(feed.batch_size or BATCH, widest)
    drawn = draw_batches(feed, n, width, steps, DrawAddress(SEED, round, owner))
    for positions, size in zip(drawn.positions, drawn.sizes, strict=True):
        yield positions[:size]


def local_batches(
    sizes: list[int], round: int, client: int, epochs: int = 1, stream: int = 0
) -> Iterator[tuple[Array, Array]]:
    """(inputs, one-hot labels) of a client's batches."""
    x, y = local_data(sizes, client)
    steps = epochs * steps_per_epoch(len(x), min(BATCH, max(sizes)), batch_statistics=False)
    for positions in batches(Feed(stream=stream), len(x), max(sizes), steps, round, client):
        yield x[positions], y[positions]


def local_data(sizes: list[int], client: int) -> tuple[Array, Array]:
    """All (inputs, one-hot labels) of a client."""
    part: Partition = toy_partition(DATA, sizes)
    return X[part.train[client]], Y[part.train[client]]


def descend(w: Array, steps: Iterator[tuple[Array, Array]], lr: float = LR) -> Array:
    """SGD on the cross-entropy."""
    for x, target in steps:
        w = w - lr * gradient(w, x, target)
    return w


def initial(federation: Federation, draw: int = 0) -> Array:
    """The initial weights that all methods share."""
    return np.asarray(federation.server.initial_model(draw=draw).weights.numpy())


def near(found: torch.Tensor, expected: Array) -> None:
    """Equal up to rounding."""
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
