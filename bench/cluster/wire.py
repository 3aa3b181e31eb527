"""Messages between the engines of one cell. A tensor, layout or function that the receiver has is not sent again."""

import copyreg
import io
import pickle
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from ray import cloudpickle
from torch import Tensor

from bench.params import Spec


class FlatTensor(NamedTuple):
    """A tensor's bytes, with the type and shape that are needed to restore it."""

    content: npt.NDArray[np.uint8]
    dtype: torch.dtype
    shape: torch.Size


@dataclass
class PackedValue:
    """A value packed for the other end.

    Attributes:
        data: the pickled value, with numbers in place of tensors, layouts and functions.
        fixed: pickled layouts and functions that are sent for the first time, by number.
        tensors: tensors that the receiver does not have, by number.
        forgotten: numbers of tensors that the receiver can drop.
    """

    data: bytes = b""
    fixed: dict[int, bytes] = field(default_factory=dict)
    tensors: dict[int, FlatTensor] = field(default_factory=dict)
    forgotten: list[int] = field(default_factory=list)


class _Known(NamedTuple):
    tensor: "weakref.ref[Tensor]"
    number: int
    version: int


class Wire:
    """One end of a connection between two engines.

    The far end keeps every tensor until the near end, which keeps track of it, has dropped it. So what a client's
    state holds from one round to the next is sent at most once.

    Args:
        home: device on which arriving tensors are put.
        near: whether this is the end that sends requests (near) or the one that answers them (far).
    """

    def __init__(self, home: torch.device, *, near: bool) -> None:
        self._home = home
        self._near = near
        self._next = 0 if near else 1  # one end uses even numbers, the other odd ones
        self._fixed: dict[Hashable, int] = {}
        self._objects: dict[int, Any] = {}
        self._known: dict[int, _Known] = {}  # at the near end, by id
        self._dead: list[int] = []  # numbers
        self._held: dict[int, Tensor] = {}  # at the far end

    def pack(self, value: Any) -> PackedValue:
        """Pack a value for the other end."""
        packed, numbers, out = PackedValue(), dict[int, int](), io.BytesIO()
        pickler = pickle.Pickler(out, protocol=5)

        def number_of(item: Any) -> int | None:
            if isinstance(item, Tensor):
                if id(item) not in numbers:
                    numbers[id(item)] = self._number(item, packed)
                return numbers[id(item)]
            return self._fix(item, packed) if isinstance(item, Spec | FunctionType) else None

        pickler.dispatch_table = _REDUCED
        pickler.persistent_id = number_of  # type: ignore[method-assign]
        pickler.dump(value)
        packed.data = out.getvalue()
        packed.forgotten, self._dead = self._dead, []
        return packed

    def unpack(self, packed: PackedValue) -> Any:
        """Unpack a value from the other end."""
        for number in packed.forgotten:
            self._held.pop(number, None)
        for number, data in packed.fixed.items():
            self._objects[number] = item = pickle.loads(data)
            self._fixed[item] = number
        arrived = {number: _tensor(flat).to(self._home) for number, flat in packed.tensors.items()}
        if self._near:
            for number, tensor in arrived.items():
                self._know(tensor, number)
        else:
            self._held |= arrived
        unpickler = pickle.Unpickler(io.BytesIO(packed.data))

        def find(number: int) -> Any:
            if number in self._objects:
                return self._objects[number]
            return arrived[number] if number in arrived else self._held[number]

        unpickler.persistent_load = find  # type: ignore[method-assign]
        return unpickler.load()

    def _number(self, tensor: Tensor, packed: PackedValue) -> int:
        entry = self._known.get(id(tensor))
        if entry and entry.tensor() is tensor and entry.version == _version(tensor):
            return entry.number
        number = self._draw()
        packed.tensors[number] = flat(tensor)
        if self._near:
            self._know(tensor, number)
        else:
            self._held[number] = tensor
        return number

    def _know(self, tensor: Tensor, number: int) -> None:
        """Remember a tensor that the far end has too, until it is dropped or changed here."""
        at = id(tensor)
        if at in self._known:
            self._dead.append(self._known.pop(at).number)

        def drop(reference: "weakref.ref[Tensor]") -> None:
            if at in self._known and self._known[at].tensor is reference:
                self._dead.append(self._known.pop(at).number)

        self._known[at] = _Known(weakref.ref(tensor, drop), number, _version(tensor))

    def _fix(self, item: Any, packed: PackedValue) -> int:
        if item not in self._fixed:
            number = self._fixed[item] = self._draw()
            self._objects[number] = item
            packed.fixed[number] = cloudpickle.dumps(item)  # type: ignore[no-untyped-call]
        return self._fixed[item]

    def _draw(self) -> int:
        self._next += 2
        return self._next


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)  # a function of ours, since pickle cannot import the type by its name


_REDUCED = copyreg.dispatch_table | {MappingProxyType: lambda view: (_read_only, (dict(view),))}
"""How to restore values of types that pickle does not support."""


def flat(tensor: Tensor) -> FlatTensor:
    """Return a tensor's bytes on the CPU, ready to be sent."""
    array = tensor.detach().cpu().contiguous()
    return FlatTensor(array.reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tensor.shape)


def _tensor(flat: FlatTensor) -> Tensor:
    tensor = torch.empty(flat.shape, dtype=flat.dtype)
    np.copyto(tensor.reshape(-1).view(torch.uint8).numpy(), flat.content)  # copied: Ray's memory is read-only
    return tensor


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
