"""A simulated second device on the CPU: its tensors are wrappers that report another device.

It forbids what a GPU forbids: an operation on tensors of two devices, and a layer on no samples, is an error. What is
copied to the processor in passing is there only once the processor has waited for the device; until then it is NaN.
It counts what is slow on a GPU: how often the processor waits for numbers. And a test can limit its memory.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "lazy"
"""A device type that PyTorch knows but has no code for, so that everything on it goes through this module."""

_NEEDS_SAMPLES = "batch_norm", "convolution", "layer_norm", "group_norm", "pool", "_fft_", "lstm"
"""Parts of the names of operations that a GPU's libraries refuse for tensors without numbers, or some of them do."""
_MAY_MIX = {"_to_copy", "copy_", "index", "index_put_"}  # as on a GPU: copies, and indices that are on the processor


class There(Tensor):
    """A tensor of the second device; `here` is its memory."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        """Wrap a tensor."""
        with torch.inference_mode(False):  # views of wrappers made in inference mode do not count versions
            made: There = torch.Tensor._make_wrapper_subclass(
                cls, here.shape, here.stride(), here.storage_offset(), dtype=here.dtype, device=torch.device(NAME)
            )
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Backward passes call this without the context."""
        return _run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        """The address of the memory."""
        return self.here.data_ptr()

    def tolist(self) -> Any:
        """A copy of the numbers."""
        return self.cpu().tolist()


class SecondDevice(TorchDispatchMode):
    """As a context: there is a device called NAME, and the memory of its tensors is counted.

    Args:
        limit: bytes of memory it has.

    Attributes:
        live: bytes of its storages that still exist.
        peak: the largest number of bytes that existed at one time.
        waits: how often its numbers were read or copied to the processor.
        uploads: tensors of the processor that were copied to it, indices that lie on the processor among them.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        super().__init__()
        self.limit = limit
        self.live = self.peak = 0
        self._storages: set[int] = set()
        self.waits = self.uploads = 0
        self._underway: list[tuple[Tensor, Tensor]] = []  # where to on the processor, and the numbers

    def __enter__(self) -> "SecondDevice":
        """Switch the device on."""
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(1.0, device=...)` then starts on the CPU
        enabled = torch.is_autocast_enabled  # PyTorch refuses to say so of devices such as this one
        self._autocast = mock.patch.object(
            torch, "is_autocast_enabled", lambda *kind: NAME not in kind and enabled(*kind)
        )
        self._autocast.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Switch the device off."""
        super().__exit__(*error)
        self._autocast.stop()
        self._arrive()
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        out = _run(func, args, kwargs or {})
        found, given = _leaves((out,)), _leaves(args)
        from_there = any(isinstance(t, There) for t in given) and not isinstance(found[0], There)
        in_passing = func is torch.ops.aten.copy_.default and args[2:] == (True,)
        if from_there and in_passing:
            self._underway.append((out, out.clone()))
            out.fill_(math.nan if out.is_floating_point() else -1)
        elif from_there and func is not torch.ops.aten.empty_like.default:
            self.waits += 1
            self._arrive()
        if isinstance(found[0], There) and func._schema.name.removeprefix("aten::") in _MAY_MIX:
            self.uploads += sum(isinstance(t, Tensor) and not isinstance(t, There) for t in given)
        for tensor in found:
            if isinstance(tensor, There):
                self._count(tensor.here.untyped_storage())
        return out

    def _arrive(self) -> None:
        for place, numbers in self._underway:
            place.copy_(numbers)
        self._underway.clear()

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        if self.live + size > self.limit:
            raise torch.OutOfMemoryError(f"the second device has {self.limit} bytes")
        self._storages.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.live -= size


def _leaves(values: Any) -> list[Any]:
    """What an operation's arguments or results contain, out of their lists. PyTorch's function for this knows more
    kinds, and took two thirds of the time of these tests."""
    leaves = []
    for value in values:
        if isinstance(value, (tuple, list)):
            leaves += _leaves(value)
        else:
            leaves.append(value)
    return leaves


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same arguments or results with changed tensors."""
    if isinstance(value, (tuple, list)):
        return type(value)([_map(change, part) for part in value])
    return change(value) if isinstance(value, Tensor) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in _leaves((args, *kwargs.values())) if isinstance(t, Tensor)]
    there = any(isinstance(t, There) for t in tensors)
    name = func._schema.name.removeprefix("aten::")
    if there and name not in _MAY_MIX and any(not isinstance(t, There) and t.dim() for t in tensors):
        raise RuntimeError(f"{name}: tensors on two devices")
    if there and any(part in name for part in _NEEDS_SAMPLES) and not tensors[0].numel():
        raise RuntimeError(f"{name}: CUDA error: invalid argument")
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
    plain_args = _map(_here, args)
    plain_kwargs = {name: _map(_here, value) for name, value in kwargs.items()}
    if there and "device" in kwargs:
        plain_kwargs["device"] = torch.device("cpu")
    out = func(*plain_args, **plain_kwargs)
    if not there:
        return out
    if torch.Tag.inplace_view in func.tags:  # the wrapper takes the new shape, too
        args[0].data = There(args[0].here)
    given = {id(_here(t)): t for t in tensors}  # to return the given wrapper
    return _map(lambda t: given[id(t)] if id(t) in given else There(t), out)


def _here(tensor: Tensor) -> Tensor:
    """The memory of a tensor of the second device; another tensor itself."""
    return tensor.here if isinstance(tensor, There) else tensor
