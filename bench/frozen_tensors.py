"""Frozen tensors, which no training changes: all model values of an architecture share one copy of them."""

import hashlib
import itertools
from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from bench.buffers import statistics


class Frozen:
    """Values of frozen tensors, which all model values of an architecture share: one copy on each device.

    Args:
        tensors: the values by name.
        parts: frozen tensors of the parts of a composed model, by the part's name.

    Attributes:
        digest: 16 hex digits of the values of `tensors`.
        recorded: functions that were recorded with these values in them, so that they go when the values go.
    """

    def __init__(self, tensors: Mapping[str, Tensor], parts: "Mapping[str, Frozen] | None" = None) -> None:
        self.digest = _digest(tensors)
        self._tensors = dict(tensors)
        self._parts = dict(parts or {})
        self.recorded: dict[Any, Any] = next((part.recorded for part in self._parts.values()), {})
        self._copies: dict[torch.device, dict[str, Tensor]] = {}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Frozen":
        """The frozen tensors of these values; equal values are one object, whichever cell they are of."""
        frozen = cls(tensors)
        return _LIVE.setdefault(frozen.digest, frozen)

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The values by name on a device, copied there once."""
        if device not in self._copies:
            with torch.inference_mode(False):  # a training may read the copy later
                copies = {name: _copied(tensor, device) for name, tensor in self._tensors.items()}
            for prefix, part in self._parts.items():
                copies |= {f"{prefix}.{name}": tensor for name, tensor in part.on(device).items()}
            self._copies[device] = copies
        return self._copies[device]

    def __reduce__(self) -> Any:
        return (Frozen, ({}, self._parts)) if self._parts else (_of_tensors, (self._tensors,))


def _of_tensors(tensors: Mapping[str, Tensor]) -> Frozen:
    """`Frozen.of` as a function: cloudpickle copies the class of a class method, and `_LIVE` cannot be copied."""
    return Frozen.of(tensors)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """16 hex digits of the names, shapes, types and values; nothing for no tensors."""
    if not tensors:
        return ""
    total = hashlib.blake2b(digest_size=8)
    for name, tensor in tensors.items():
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.is_meta}\n".encode())
        if not tensor.is_meta:  # a model whose cost is estimated has no numbers
            total.update(tensor.cpu().numpy().tobytes())
    return total.hexdigest()


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if tensor.is_meta else tensor.to(device)


NOTHING_FROZEN = Frozen({})
_LIVE: WeakValueDictionary[str, Frozen] = WeakValueDictionary()


def frozen_layers(module: nn.Module, frozen: Collection[str]) -> list[nn.Module]:
    """The layers of a module all of whose tensors are frozen, and the layers in these.

    Args:
        frozen: names of the frozen tensors.
    """
    tensors = [name for name, _ in itertools.chain(module.named_parameters(), statistics(module))] if frozen else []
    still: dict[nn.Module, None] = {}
    for path, layer in module.named_modules():
        inside = [name for name in tensors if not path or name.startswith(f"{path}.")]
        if inside and all(name in frozen for name in inside):
            still |= dict.fromkeys(layer.modules())
    return list(still)
