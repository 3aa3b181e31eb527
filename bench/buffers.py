"""Buffers of a network: statistics, which training moves, and constants, which are a part of the architecture."""

import itertools
from collections.abc import Iterator, Mapping

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


def fill(module: nn.Module, values: Mapping[str, Tensor], device: torch.device) -> nn.Module:
    """Give a module copies of these values for its parameters and buffers, in place, each in its value's type.

    `module.to(dtype)` would take the imaginary part of complex constants away.

    Args:
        module: the module, on any device; its values are not read.
        values: values by name; a tensor without one, of a module of which only a part is used, becomes 0.
        device: where the tensors are placed.
    """
    module.to_empty(device=device)
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        tensor.data = values.get(name, torch.zeros_like(tensor)).detach().to(device, copy=True)
    return module
