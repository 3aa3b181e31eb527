"""A simulated `torch.cuda` on the CPU: streams, captured graphs, their memory pool and the generator.

It forgives less than a GPU does. A captured graph is a list of operations on addresses, and keeps nothing alive: what
nobody holds any more is full of NaN. A stream may not touch what another stream has written unless it waited for it. A
capture may leave nothing behind in its pool, needs a pool that somebody holds, and if it fails it leaves stream,
generator and pool in the middle of a capture, as PyTorch does.
"""

import contextlib
import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Address = tuple[int, tuple[int, ...], tuple[int, ...], int, torch.dtype]
"""Number of a storage, and size, strides, offset and type of a tensor in it."""


class Stream:
    """A stream, and for each stream the last of its operations that this one has waited for."""

    def __init__(self) -> None:
        self.seen: dict[Stream, int] = {}

    def wait_stream(self, other: "Stream") -> None:
        """Let what follows on this stream come after what the other one has done so far."""
        for stream, last in other.seen.items():
            self.seen[stream] = max(last, self.seen.get(stream, 0))


class Generator:
    """The device's generator; in capture mode it cannot draw outside a capture."""

    capturing = False

    def clone_state(self) -> "Generator":
        """Return a generator outside a capture."""
        return Generator()

    def graphsafe_set_state(self, state: "Generator") -> None:
        """Take the state of another generator."""
        self.capturing = state.capturing


class MemPool:
    """A pool that is held as long as this object lives."""

    def __init__(self, number: int, holders: dict[int, int]) -> None:
        self.id, self._holders = number, holders
        holders[number] = 1

    def __del__(self) -> None:
        self._holders[self.id] -= 1


class CUDAGraph:
    """Operations on addresses."""

    def __init__(self, device: "SimulatedCuda") -> None:
        self.device = device
        self.operations: list[tuple[Any, Any, Any, list[Address]]] = []
        self.pool = -1

    def __del__(self) -> None:
        if self.pool in self.device.holders:
            self.device.holders[self.pool] -= 1

    def replay(self) -> None:
        """Do the operations again."""
        storages: dict[int, torch.UntypedStorage] = {}
        for function, args, kwargs, results in self.operations:
            at = [tree_map(lambda value: self._tensor(value, storages), values) for values in (args, kwargs)]
            out = function(*at[0], **at[1])
            for tensor, address in zip(_tensors(out), results, strict=True):
                storages[address[0]] = tensor.untyped_storage()

    def _tensor(self, value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
        if not isinstance(value, _At):
            return value
        number, size, strides, offset, dtype = value.address
        if number not in storages:
            storages[number] = self.device.storage(number)
        return torch.empty(0, dtype=dtype).set_(storages[number], offset, size, strides)


class _At:
    """The place of a tensor in a recorded operation."""

    def __init__(self, address: Address) -> None:
        self.address = address


class SimulatedCuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a context, and in place of the module `torch.cuda`: all tensors of the CPU are the device's.

    Attributes:
        holders: how many objects hold each pool.
        captures: how many there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._storages: dict[int, tuple[int, StorageWeakRef]] = {}  # by address of the storage: its number and itself
        self._by_number: dict[int, tuple[StorageWeakRef, int]] = {}
        self._written: dict[int, tuple[Stream, int]] = {}
        self._clock = itertools.count(1)
        self._stream = Stream()
        self._capture: CUDAGraph | None = None
        self._inside: set[int] = set()
        self._used: set[int] = set()
        self._open: set[int] = set()  # pools in the middle of a capture
        self._asked: weakref.ref[CUDAGraph] | None = None
        self.default_generators = [Generator()]
        self.memory = self
        self.holders: dict[int, int] = {}
        self.captures = 0

    def Stream(self) -> Stream:  # noqa: N802  # as torch.cuda calls it
        """Make a stream."""
        return Stream()

    def MemPool(self) -> MemPool:  # noqa: N802
        """Make a pool."""
        return MemPool(next(self._numbers), self.holders)

    def CUDAGraph(self) -> CUDAGraph:  # noqa: N802
        """Make an empty graph."""
        return CUDAGraph(self)

    def current_device(self) -> int:
        """Return the number of the only device."""
        return 0

    def current_stream(self) -> Stream:
        """Return the stream on which operations go."""
        return self._stream

    def set_stream(self, stream: Stream) -> None:
        """Let operations go on a stream from now on."""
        self._stream = stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Let operations go on a stream in this context."""
        before, self._stream = self._stream, stream
        yield
        self._stream = before  # not after an error, as where `capture_begin` of PyTorch fails

    @contextlib.contextmanager
    def graph(self, graph: CUDAGraph, pool: int, stream: Stream) -> Iterator[None]:
        """Capture what is done in this context.

        Raises:
            RuntimeError: nobody holds the pool any more, an operation is not allowed in a capture, or memory of the
                capture outlives it.
        """
        stream.wait_stream(self._stream)
        with self.stream(stream):
            self.default_generators[0].capturing = True
            if self._open or (not self.holders[pool] and pool in self._used):
                raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
            self._used.add(pool)
            self._open.add(pool)
            self._asked = weakref.ref(graph)
            self._capture, self._inside = graph, set()
            try:
                yield
            finally:
                self._capture = None
            self._cuda_endAllocateToPool(0, pool)
            self._asked = None
            self.default_generators[0].capturing = False
        graph.pool = pool
        self.holders[pool] += 1
        self.captures += 1
        gc.collect()
        if any(not self._by_number[number][0].expired() for number in self._inside):
            raise RuntimeError("memory of a capture outlives it: another graph of the pool would write to it")

    def _cuda_endAllocateToPool(self, device: int, pool: int) -> None:  # noqa: N802
        if pool not in self._open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self._open.remove(pool)

    def draw(self) -> None:
        """Draw from the device's generator."""
        if self.default_generators[0].capturing and self._capture is None:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly")

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return the memory at an address: NaN where nobody holds it."""
        reference, size = self._by_number[number]
        if not reference.expired():
            return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # type: ignore[no-any-return]
        return torch.full((size,), 255, dtype=torch.uint8).untyped_storage()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do one operation on the current stream, and write it down where a capture is under way."""
        if self._asked is not None and self._asked() is None:
            raise RuntimeError("an allocator asks a graph that is gone")
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        for tensor in given:
            self._wait_for(tensor)
        out = func(*args, **kwargs)
        now = next(self._clock)
        self._stream.seen[self._stream] = now
        changed = {id(t) for t in given} if func._schema.is_mutable else set()
        for tensor in [*_tensors(out), *(t for t in given if id(t) in changed)]:
            self._written[self._number(tensor)] = self._stream, now
        if self._capture is not None:
            self._note(func, args, kwargs, out)
        return out

    def _wait_for(self, tensor: Tensor) -> None:
        stream, when = self._written.get(self._number(tensor), (self._stream, 0))
        if stream is not self._stream and self._stream.seen.get(stream, 0) < when:
            raise RuntimeError("a stream reads what another one writes, and has not waited for it")

    def _number(self, tensor: Tensor) -> int:
        """Number the storage of a tensor. One at the address of another that is gone is new."""
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None or known[1].expired():
            known = next(self._numbers), StorageWeakRef(storage)
            self._storages[storage._cdata] = known
            self._by_number[known[0]] = known[1], storage.nbytes()
            if self._capture is not None:
                self._inside.add(known[0])
        return known[0]

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        assert self._capture is not None
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError("operation not permitted when stream is capturing")
        places = [tree_map(self._place, values) for values in (args, kwargs)]
        self._capture.operations.append((func, *places, [self._address(t) for t in _tensors(out)]))

    def _address(self, tensor: Tensor) -> Address:
        offset = int(tensor.storage_offset())
        return self._number(tensor), tuple(tensor.shape), tensor.stride(), offset, tensor.dtype

    def _place(self, value: Any) -> Any:
        return _At(self._address(value)) if isinstance(value, Tensor) else value


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
