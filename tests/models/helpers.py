"""Shared by the tests of models."""

import itertools
from collections.abc import Mapping

from torch import Tensor, nn


def filled(net: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """The module on the CPU with these parameters and buffers, as an ordinary torch module."""
    net.to_empty(device="cpu")
    for path, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        tensor.data = values[path].clone()
    return net
