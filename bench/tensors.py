"""Tensors of a network beside its trained parameters, and the processor that they are on.

Buffers are statistics, which training moves, or constants, which are a part of the architecture. Frozen tensors are
those that no training changes: all model values of an architecture share one copy of them.
"""

import functools
import hashlib
import importlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn


def on_gpu(tensor: Tensor) -> bool:
    """Return whether faster forms that round differently may be used; on a CPU results must stay bitwise equal.

    Tensors without numbers stand for a CPU's.
    """
    return tensor.device.type not in ("cpu", "meta")


def gpu_memory_ran_out(error: Exception) -> bool:
    """Return whether an error means that memory ran out, so a smaller cohort might fit; cuFFT has its own message."""
    return isinstance(error, torch.OutOfMemoryError) or "CUFFT_ALLOC_FAILED" in str(error)


def triton_kernels(module: str, *tensors: Tensor) -> Any:
    """The module of that name with Triton kernels, or None where they cannot take these tensors.

    They index with 32 bits.
    """
    taken = torch.bfloat16, torch.float32, torch.complex64
    if not all(t.device.type == "cuda" and t.dtype in taken and t.numel() < 2**31 for t in tensors):
        return None
    return importlib.import_module(module) if triton_works() else None


@functools.cache
def triton_works() -> bool:
    """Whether Triton can run a kernel on this process's GPU: it may not be installed, and needs a C compiler."""
    try:
        unit = torch.ones(1, 1, dtype=torch.complex64, device="cuda")
        importlib.import_module("bench.dft_kernels").order(unit, out := 0 * unit[None], 1, to_half=True)
        return bool(out.real == 1)
    except Exception:  # whatever is wrong with it, PyTorch's operations do the same
        return False


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
                copies = {name: t if t.is_meta else t.to(device) for name, t in self._tensors.items()}
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
