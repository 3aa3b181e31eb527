"""Shared by the tests of models."""

import itertools
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from bench.data import Dataset, TokenShape
from bench.rng import generator
from bench.tensors import constants


def filled(net: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """The module on the CPU with these parameters and buffers, and its constants, as an ordinary torch module."""
    fixed = dict(constants(net))
    net.to_empty(device="cpu")
    for path, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        tensor.data = (fixed if path in fixed else values)[path].clone()
    return net


def pictures(side: int, channels: int = 1) -> Dataset:
    """Square pictures of three classes, 20 to train and 10 to test."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 30)
    x = (rng.normal(size=(30, channels, side, side)) + y[:, None, None, None]).astype(np.float32)
    return Dataset("toy", x, y, 20, 3, (0.0,) * channels, (1.0,) * channels, "toy")


def inputs(shape: tuple[int, ...], *before: int) -> Tensor:
    """Samples of a shape: tokens, or numbers in float64."""
    rng = generator(0, "x")
    if isinstance(shape, TokenShape):
        return torch.from_numpy(rng.integers(shape.vocabulary, size=(*before, shape.length)))
    return torch.from_numpy(rng.normal(size=(*before, *shape)))
