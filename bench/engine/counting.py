"""Count what code on tensors costs without computing it: large tensors have shapes and no numbers.

A `Shadow` sees every operation. One that reads or makes a large tensor is done on the meta device, which only works
out shapes; a small result of it gets made-up numbers, so that what reads them (a comparison, a similarity of clients)
goes on. Operations on small tensors are done. A loop of recorded steps is not run: one step of each shape is traced.
"""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bench.engine.backends import backends
from bench.engine.backends.backends import Recorded
from bench.engine.backends.loops import Function

LARGE = 2**16
"""Numbers; tensors with more of them have none."""
_MOST = 10**6  # operations; whoever takes more waits for a made-up number to change

_PICKING = ("index", "gather", "embedding", "scatter", "take", "select")
"""Beginnings of operations that read only the part of a tensor that they return or write."""


class EndlessError(Exception):
    """The code takes more operations than can be counted."""


class Operation(NamedTuple):
    """Cost of one operation on tensors.

    Attributes:
        kind: `view` (nothing is computed), `convolution`, `product` (of matrices), `transform` (Fourier) or `plain`.
        flops: floating-point operations of the middle three; a multiply-add counts as two.
        moved: bytes of tensors that it reads and writes.
    """

    kind: str
    flops: int
    moved: int


Operations = Counter[Operation]


@dataclass
class Tally:
    """Counted work.

    Attributes:
        outside: operations outside recorded loops.
        calls: for each traced step, by its place in `Shadow.steps`, how often it is called.
    """

    outside: Operations = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)


class Shadow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which operations are counted; see the module.

    Attributes:
        tally: what was counted; replace it to begin a new count.
        steps: operations of each traced step.

    Raises:
        EndlessError: from inside the context.
        NotImplementedError, RuntimeError: likewise, where an operation needs numbers that are not there.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tally = Tally()
        self.steps: list[Operations] = []
        self._known_steps: dict[tuple[Recorded, tuple[torch.Size, ...]], int] = {}
        self._tracing: Operations | None = None
        self._count_of_operations = 0

    @contextmanager
    def counting(self) -> Iterator["Shadow"]:
        """Count in this context, loops of recorded steps included."""
        with self, backends.not_run(self._loop):
            yield self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = _leaves(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numberless = any(t.is_meta for t in tensors) or _size(func, args, tensors) > LARGE
        if numberless and func is torch.ops.aten._local_scalar_dense.default:
            return _invented(torch.empty((), dtype=tensors[0].dtype)).item()
        if numberless and func is torch.ops.aten.equal.default:
            return True
        invents = numberless and self._tracing is None and not _aliases(func)
        signature = _signature(func, args, kwargs) if numberless else None
        if signature in _KNOWN_OPERATIONS:  # torch works out shapes in Python, which takes a millisecond
            shapes, operation = _KNOWN_OPERATIONS[signature]
            self._note(operation)
            return _tensors(shapes, invents)
        results = self._without_numbers(func, args, kwargs) if numberless else func(*args, **kwargs)
        operation = _operation(func, args, kwargs, tensors, results)
        self._note(operation)
        if signature is not None and (new := _shapes(results)) is not None:
            _KNOWN_OPERATIONS[signature] = new, operation
        return pytree.tree_map_only(Tensor, _invented_if_small, results) if invents else results

    def _without_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = kwargs.get("out", args[0] if args else None)
        if func._schema.is_mutable and isinstance(written, Tensor) and not written.is_meta:
            return written
        args, kwargs = pytree.tree_map_only(Tensor, lambda t: t if t.is_meta else t.to("meta"), (args, kwargs))
        if "device" in kwargs or not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            kwargs = {**kwargs, "device": torch.device("meta")}
        kwargs = {**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs
        return func(*args, **kwargs)

    def _note(self, operation: Operation) -> None:
        self._count_of_operations += 1
        if self._count_of_operations > _MOST:
            raise EndlessError(f"more than {_MOST} operations")
        (self.tally.outside if self._tracing is None else self._tracing)[operation] += 1

    def _loop(
        self, step: Recorded, function: Function, examples: list[Tensor], calls: int, args: tuple[Any, ...]
    ) -> list[Tensor]:
        """Count a `ClientLoop` of recorded steps instead of running it; the values stay as they are."""
        key = step, tuple(t.shape for t in examples)
        if key not in self._known_steps:
            self._known_steps[key] = len(self.steps)
            self.steps.append(self._trace(function, examples))
        self.tally.calls[self._known_steps[key]] += calls
        return [t.clone() for t in args[0]]

    def _trace(self, step: Function, examples: list[Tensor]) -> Operations:
        operations: Operations = Counter()
        self._tracing = operations
        try:
            step([t.detach().to("meta") for t in examples])
            return operations
        finally:
            self._tracing = None


_PLAIN = bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format

Shapes = tuple[bool, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype] | None, ...]]
"""Whether an operation returns several tensors, and the shape, strides and type of each; None stands for None."""

_KNOWN_OPERATIONS: dict[Hashable, tuple[Shapes, Operation]] = {}
"""What operations without numbers return, and what they cost, by `_signature`."""


def _leaves(*values: Any) -> list[Any]:
    """The values in lists, tuples and dictionaries, in their order."""
    leaves: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            leaves += _leaves(*value)
        elif isinstance(value, dict):
            leaves += _leaves(*value.values())
        else:
            leaves.append(value)
    return leaves


def _signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """The part of a call that decides the shapes of its results; None if they are worked out each time: they share
    memory with what it gets, or it is asked for in another way than by tensors and numbers."""
    if _aliases(func) or func._schema.is_mutable:
        return None
    try:
        return func, _parts(args), tuple(kwargs), _parts(tuple(kwargs.values()))
    except TypeError:
        return None


def _parts(values: Sequence[Any]) -> tuple[Hashable, ...]:
    """Raises TypeError: a value is none of those that a signature may have."""
    parts: list[Hashable] = []
    for value in values:
        if isinstance(value, Tensor):
            parts.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, (list, tuple)):
            parts.append(_parts(value))
        elif value is None or isinstance(value, _PLAIN):
            parts.append((type(value), value))  # True, 1 and 1.0 are equal
        else:
            raise TypeError
    return tuple(parts)


def _shapes(results: Any) -> Shapes | None:
    several = isinstance(results, (list, tuple))
    tensors = results if several else [results]
    if not all(t is None or (isinstance(t, Tensor) and t.is_meta) for t in tensors):
        return None
    return several, tuple(t if t is None else (t.shape, t.stride(), t.dtype) for t in tensors)


def _tensors(shapes: Shapes, invents: bool) -> Any:
    """New tensors of these shapes, the small ones with invented numbers if so wanted."""
    several, each = shapes
    tensors = [None if shape is None else _tensor(*shape, invents) for shape in each]
    return tensors if several else tensors[0]


def _tensor(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, invents: bool) -> Tensor:
    if invents and math.prod(shape) <= LARGE:
        return _numbers(shape, dtype).clone()
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _size(func: Any, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> int:
    """Numbers that an operation reads, or that it makes from nothing."""
    size = sum(t.numel() for t in tensors)
    if not tensors or func.__name__.startswith("new_"):
        size += sum(math.prod(shape) for shape in args if isinstance(shape, (list, tuple)) and _whole(shape))
    return size


def _whole(numbers: Sequence[Any]) -> bool:
    return all(isinstance(number, int) for number in numbers)


@functools.cache
def _aliases(func: Any) -> bool:
    """Whether what an operation returns shares memory with what it gets."""
    return any(result.alias_info is not None for result in func._schema.returns)


def _operation(func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor], results: Any) -> Operation:
    if _aliases(func) and not func._schema.is_mutable:
        return Operation("view", 0, 0)
    outputs = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    moved = sum(t.nbytes for t in outputs)
    moved = 2 * moved if func.__name__.startswith(_PICKING) else moved + sum(t.nbytes for t in tensors)
    if "fft" in func.__name__:
        numbers = max(t.numel() for t in (*tensors, *outputs))
        length = max(2, *(side for t in outputs for side in t.shape))
        return Operation("transform", round(5 * numbers * math.log2(length)), moved)
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return Operation("plain", 0, moved)
    kind = "convolution" if "convolution" in func.__name__ else "product"
    return Operation(kind, int(formula(*args, **kwargs, out_val=results)), moved)


def _invented_if_small(t: Tensor) -> Tensor:
    return _invented(t) if t.numel() <= LARGE else t


def _invented(t: Tensor) -> Tensor:
    return _numbers(t.shape, t.dtype).clone()


@functools.lru_cache(200)
def _numbers(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Numbers for a tensor without any: True, zeros as whole numbers, else positive and unequal ones, in square
    matrices with a large diagonal, so that they have an inverse."""
    if not dtype.is_floating_point:
        return torch.ones(shape, dtype=dtype) if dtype is torch.bool else torch.zeros(shape, dtype=dtype)
    size = math.prod(shape)
    numbers = torch.linspace(0.5, 1, max(1, size), dtype=torch.float64)[:size].reshape(shape)
    if len(shape) > 1 and shape[-1] == shape[-2]:
        numbers = (numbers + numbers.mT) / 2 + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)
    return numbers.to(dtype)
