"""Batches of samples: drawn on the CPU, from addresses, and the same on every device and executor."""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.requests import Categorical, Draw, Feed, Normal
from bench.rng import generator

Positions = npt.NDArray[np.int64]

CROPS = 9 * 9 * 2  # places of a crop after padding by 4, times mirrored or not


class DrawAddress(NamedTuple):
    """Part of the address of every batch: the owner, round and seed of its draws.

    Attributes:
        purpose, training: what a program is for (empty: a round of training), and the number of a training in it. They
            are part of the address of noise and of what networks draw: trainings of a round share their batches, and
            must share neither.
    """

    seed: int
    round: int
    owner: int
    purpose: str = ""
    training: int = 0


class Batches(NamedTuple):
    """The batches of one request.

    Attributes:
        positions: `[steps, width]` positions in the owner's list; a short batch repeats its first sample.
        sizes: `[steps]` real samples per batch.
        per_epoch: batches in one pass.
        divisor: of a batch's sum, in place of its size; 0: it is the size.
    """

    positions: Positions
    sizes: Positions
    per_epoch: int = 1
    divisor: int = 0


def steps_per_epoch(n: int, batch_size: int, *, batch_statistics: bool) -> int:
    """Batches in one pass over n samples; with BatchNorm a last batch of one sample is dropped unless alone."""
    full, rest = divmod(n, batch_size)
    if rest == 1 and n > 1 and batch_statistics:
        rest = 0
    return full + (rest > 0)


def draw_batches(
    feed: Feed, n: int, width: int, steps: int, address: DrawAddress, *, batch_statistics: bool = False
) -> Batches:
    """Draw `steps` batches of at most `width` out of n samples, in the order the feed asks for."""
    if feed.samples == "none" or not steps:
        return Batches(np.zeros((steps, width), np.int64), np.full(steps, width))
    at = ("batches", address.seed, address.round, address.owner, feed.stream)
    per_epoch = max(1, steps_per_epoch(n, width, batch_statistics=batch_statistics))
    if feed.order == "uniform":
        uniform, chosen = generator(*at, "uniform"), min(width, n)
        places = np.where(np.arange(width) < chosen, np.arange(width), 0)
        drawn = [uniform.choice(n, chosen, replace=False)[places] for _ in range(steps)]
        return Batches(np.array(drawn, np.int64).reshape(steps, width), np.full(steps, chosen), per_epoch)
    place, sizes = _places(n, width, per_epoch)
    epochs = -(-steps // per_epoch)
    # Each epoch has a generator of its own, so that its order does not depend on how many epochs there are.
    orders = [generator(*at, e).permutation(n) if feed.order == "shuffle" else np.arange(n) for e in range(epochs)]
    positions = np.array(orders, np.int64).reshape(epochs, n)[:, place].reshape(-1, width)
    return Batches(positions[:steps], np.concatenate([sizes] * epochs)[:steps], per_epoch)


def draw_poisson(feed: Feed, n: int, width: int, steps: int, address: DrawAddress) -> Batches:
    """Draw `steps` batches in each of which each of n samples is by its own coin, `width` of them on average, or all.

    Each training has draws of its own: were two noisy trainings to share them, a sample would be in both or in none,
    and what the two show of it would not simply add up. Arrays are `width` times a power of two wide, so that clients
    have few shapes.
    """
    divisor, at = min(width, n), (address.seed, address.round, address.owner, address.purpose, address.training)
    chosen = generator("poisson batches", *at, feed.stream).random((steps, n)) * n < divisor
    sizes, whole = chosen.sum(axis=1), width
    while whole < max(sizes, default=0):
        whole *= 2
    real_first = np.argsort(~chosen, axis=1, kind="stable")[:, :whole]
    positions = np.pad(real_first, ((0, 0), (0, whole - real_first.shape[1])))
    return Batches(positions, sizes, steps_per_epoch(n, width, batch_statistics=False), divisor)


@functools.lru_cache(16)  # asked for by every client in every round
def draw_subset(n: int, size: int, seed: int, round: int) -> Positions:
    """Draw `size` of n positions, sorted; the same for all clients of a round."""
    return np.sort(generator("subset", seed, round).choice(n, size, replace=False))


@functools.lru_cache(4096)  # asked for every client in every round
def _places(n: int, width: int, per_epoch: int) -> tuple[Positions, Positions]:
    """Return where in an epoch's order the samples of each batch are, and how many there are."""
    place = np.arange(per_epoch * width).reshape(per_epoch, width)
    return np.where(place < n, place, place[:, :1]), (place < n).sum(axis=1)


def draw_augmentation(feed: Feed, n: int, batches: Batches, address: DrawAddress) -> Positions:
    """Draw crops `[steps, width]`, numbers below `CROPS`: one per epoch and sample, whoever shares the batch."""
    steps = len(batches.sizes)
    epoch = np.arange(steps) // batches.per_epoch
    rng = generator("augmentation", address.seed, address.round, address.owner, feed.stream)
    codes = rng.integers(0, CROPS, (steps // batches.per_epoch + 1, n))
    augmentation: Positions = codes[epoch[:, None], batches.positions]
    return augmentation


def draw_values(
    draw: Draw, name: str, width: int, steps: int, address: DrawAddress, stream: int
) -> npt.NDArray[np.generic]:
    """Draw random values `[steps, width, ...]` of one kind."""
    rng = generator("draws", address.seed, address.round, address.owner, stream, name)
    match draw:
        case Normal(shape):
            return rng.standard_normal((steps, width, *shape))
        case Categorical(p):
            total = np.cumsum(np.asarray(p, dtype=np.float64))
            return np.searchsorted(total / total[-1], rng.random((steps, width)), side="right").astype(np.int64)


def network_keys(address: DrawAddress, steps: int) -> npt.NDArray[np.int64]:
    """Draw the keys of what networks draw in the steps of a training (`bench.network_draws`), `[steps]`."""
    at = (address.seed, address.round, address.owner, address.purpose, address.training)
    limits = np.iinfo(np.int64)
    return generator("network draws", *at).integers(limits.min, limits.max, steps, endpoint=True)
