"""Shared by the tests of models."""

import itertools
from collections.abc import Mapping

from torch import Tensor, nn

from bench.tensors import constants


def filled(net: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """The module on the CPU with these parameters and buffers, and its constants, as an ordinary torch module."""
    fixed = dict(constants(net))
    net.to_empty(device="cpu")
    for path, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        tensor.data = (fixed if path in fixed else values)[path].clone()
    return net
