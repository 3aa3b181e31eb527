"""Normalisation with statistics of training samples alone: of each client's, or of all training clients' together.

Without it a cell has the mean and standard deviation of its data set's official training part. A number that a table
lacks becomes the mean of the same samples that the statistics are of.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from bench.data import EMPTY, Array, Dataset, Floats, Indices, Own, Partition
from bench.errors import UserError
from bench.samples.shifts import with_copies

_CHUNK = 256  # samples; limits the size of the float64 copies


def apply(
    dataset: Dataset, partition: Partition, how: Literal["per_client", "pooled"], training: Sequence[int]
) -> tuple[Dataset, Partition]:
    """Normalise a cell's samples, or say with which statistics the engine will.

    Under `per_client` the samples come back as float32, normalised, and with mean 0 and standard deviation 1; each
    client has its own copies of its tests, because two clients may share a sample and see it differently, and the
    generic model is tested on their union. A channel that is constant in a client's training samples becomes 0. Under
    `pooled` only `mean` and `std` change. Channels of categories (`Dataset.indicators`) stay 0 and 1.

    Args:
        dataset, partition: of the cell, after its shifts.
        how: the cell's setting `normalise`.
        training: the clients that train; those held out of training share no statistics.

    Raises:
        UserError: the samples are tokens.
    """
    if dataset.vocabulary:
        raise UserError(f"normalise: {how}: {dataset.name} holds tokens, which have no mean; take `normalise` out")
    if how == "pooled":
        return _pooled(dataset, np.sort(np.concatenate([EMPTY, *(partition.train[i] for i in training)]))), partition
    return _per_client(dataset, partition)


def fill(x: Array, fitted: Indices, at: Indices) -> Array:
    """Samples `[len(at), ...]` in which a missing number is the mean of the numbers that the samples `fitted` have.

    A column of which these have none becomes 0.
    """
    if x.ndim != 2 or x.dtype.kind != "f" or not np.isnan(x).any():
        return x[at]
    import pandas as pd  # its import starts a thread, and workers are forked from a process that has this module

    means = pd.DataFrame(x[fitted], dtype=np.float64).mean().fillna(0).to_numpy()
    return np.where(np.isnan(x[at]), means, x[at]).astype(x.dtype)


def channel_statistics(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (axis 1), in units of `x / 255` for uint8 and of `x` otherwise.

    A constant channel gets the standard deviation 1. For uint8 the sums are exact; floating values are summed as
    differences from one of them, which reduces cancellation and gives a constant channel exactly 0.
    """
    channels = int(x.shape[1])
    total, squares = np.zeros(channels), np.zeros(channels)
    shift = np.zeros(channels) if x.dtype == np.uint8 else x[0].reshape(channels, -1)[:, 0].astype(np.float64)
    for start in range(0, len(x), _CHUNK):
        values = x[start : start + _CHUNK].reshape(-1, channels, math.prod(x.shape[2:])).astype(np.float64)
        values -= shift[:, None]
        total += values.sum(axis=2).sum(axis=0)
        np.square(values, out=values)
        squares += values.sum(axis=2).sum(axis=0)
    n = x.size / channels
    unit = 255.0 if x.dtype == np.uint8 else 1.0
    std = np.sqrt(np.maximum(squares / n - (total / n) ** 2, 0.0)) / unit
    mean = (shift + total / n) / unit
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def statistics(x: Array, indicators: Sequence[int]) -> tuple[Floats, Floats]:
    """Mean and standard deviation by channel as `Dataset` has them: 0 and 1 for channels that stay as they are."""
    mean, std = (np.array(values) for values in channel_statistics(x))
    mean[list(indicators)], std[list(indicators)] = 0.0, 1.0
    return mean, std


def _pooled(dataset: Dataset, training: Indices) -> Dataset:
    x = fill(dataset.x, training, np.arange(len(dataset.y)))
    mean, std = statistics(x[training], dataset.indicators)
    return replace(dataset, x=x, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _per_client(dataset: Dataset, partition: Partition) -> tuple[Dataset, Partition]:
    x = dataset.filled.astype(np.float32)
    tests, by_client = [], []
    for client, train in enumerate(partition.train):
        mean, std = _of_client(dataset, train)
        by_client.append((tuple(mean.tolist()), tuple(std.tolist())))

        def seen(at: Indices, train: Indices = train, mean: Floats = mean, std: Floats = std) -> Array:
            shape = (1, -1, *([1] * (dataset.x.ndim - 2)))
            filled = fill(dataset.x, train, at).astype(np.float64)
            return ((filled - mean.reshape(shape)) / std.reshape(shape)).astype(np.float32)

        for at in (train, partition.validation[client]):
            x[at] = seen(at)
        at = partition.test[client]
        tests.append(Own(dataset, client, len(partition), "test", at, seen(at), dataset.y[at], EMPTY, "normalise", 0))
    channels = dataset.x.shape[1]
    normalised = replace(
        dataset, x=x, mean=(0.0,) * channels, std=(1.0,) * channels, client_statistics=tuple(by_client)
    )
    return with_copies(normalised, partition, tests)


def _of_client(dataset: Dataset, train: Indices) -> tuple[Floats, Floats]:
    """Mean and standard deviation of a client's training samples in stored units; of a constant channel infinite."""
    channels = dataset.x.shape[1]
    if not len(train):
        return np.zeros(channels), np.full(channels, np.inf)
    x = fill(dataset.x, train, train)
    mean, std = statistics(x, dataset.indicators)
    values = np.moveaxis(x, 1, 0).reshape(channels, -1)
    constant = (values == values[:, :1]).all(axis=1)
    constant[list(dataset.indicators)] = False
    unit = 255.0 if x.dtype == np.uint8 else 1.0
    return mean * unit, np.where(constant, np.inf, std * unit)
