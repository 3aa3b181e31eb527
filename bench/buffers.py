"""Buffers of a network: statistics, which training moves, and constants, which are a part of the architecture."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's buffers of floating numbers that its state dict has, by name: they move and travel like weights."""
    return ((name, buffer) for name, buffer, constant in _buffers(module) if not constant)


def constants(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The module's other buffers, by name: masks, positions and what else is `persistent=False` or no floating number.

    They are a part of the architecture and of no model value.
    """
    return ((name, buffer) for name, buffer, constant in _buffers(module) if constant)


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    for name, buffer in module.named_buffers():
        path, _, short = name.rpartition(".")
        fleeting = short in module.get_submodule(path)._non_persistent_buffers_set
        yield name, buffer, fleeting or not buffer.is_floating_point()


def precise(dtype: torch.dtype, like: torch.dtype) -> torch.dtype:
    """The type of real or complex numbers that is as precise as `like`; other types as they are."""
    return like if dtype.is_floating_point else like.to_complex() if dtype.is_complex else dtype
