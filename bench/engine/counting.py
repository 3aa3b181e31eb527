"""Count what code on tensors costs without computing it: large tensors have shapes and no numbers.

A `Shadow` sees every operation. One that reads or makes a large tensor is done on the meta device, which only works
out shapes; a small result of it gets made-up numbers, so that what reads them (a comparison, a similarity of clients)
goes on. Operations on small tensors are done. A loop of recorded steps is not run: one step of each shape is traced.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from bench.engine.backends import backends
from bench.engine.backends.backends import Recorded
from bench.engine.backends.loops import Function
from bench.engine.memory import MemoryMeter

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


class CountedStep(NamedTuple):
    """A traced step: its operations, and the most bytes that lay in its own tensors at one time."""

    operations: Operations
    peak: int


@dataclass
class Tally:
    """Counted work.

    Attributes:
        outside: operations outside recorded loops.
        calls: for each traced step, by its place in `Shadow.steps`, how often it is called.
    """

    outside: Operations = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)


class Shadow(MemoryMeter):  # type: ignore[no-untyped-call]
    """A context in which operations are counted, and their memory too, as in `MemoryMeter`; see the module.

    Attributes:
        tally: what was counted; replace it to begin a new count.
        steps: traced steps.

    Raises:
        EndlessError: from inside the context.
        NotImplementedError, RuntimeError: likewise, where an operation needs numbers that are not there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()
        self.steps: list[CountedStep] = []
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
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numberless = any(t.is_meta for t in tensors) or _size(func, args, tensors) > LARGE
        if numberless and func is torch.ops.aten._local_scalar_dense.default:
            return _invented(torch.empty((), dtype=tensors[0].dtype)).item()
        if numberless and func is torch.ops.aten.equal.default:
            return True
        results = self._without_numbers(func, args, kwargs) if numberless else func(*args, **kwargs)
        self._note(func, args, kwargs, tensors, results)
        if numberless and self._tracing is None and not _aliases(func):
            results = pytree.tree_map_only(Tensor, _invented_if_small, results)
        for result in pytree.tree_leaves(results):
            if isinstance(result, Tensor):
                self._count(result.untyped_storage())
        return results

    def _without_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = kwargs.get("out", args[0] if args else None)
        if func._schema.is_mutable and isinstance(written, Tensor) and not written.is_meta:
            return written
        args, kwargs = pytree.tree_map_only(Tensor, lambda t: t if t.is_meta else t.to("meta"), (args, kwargs))
        if "device" in kwargs or not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            kwargs = {**kwargs, "device": torch.device("meta")}
        kwargs = {**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs
        return func(*args, **kwargs)

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor], results: Any) -> None:
        self._count_of_operations += 1
        if self._count_of_operations > _MOST:
            raise EndlessError(f"more than {_MOST} operations")
        (self.tally.outside if self._tracing is None else self._tracing)[
            _operation(func, args, kwargs, tensors, results)
        ] += 1

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

    def _trace(self, step: Function, examples: list[Tensor]) -> CountedStep:
        self._tracing, before, self.peak = Counter(), (self.live, self.peak), self.live
        try:
            step([t.detach().to("meta") for t in examples])
            return CountedStep(self._tracing, self.peak - before[0])
        finally:
            self._tracing, self.peak = None, before[1]


def _size(func: Any, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> int:
    """Numbers that an operation reads, or that it makes from nothing."""
    size = sum(t.numel() for t in tensors)
    if not tensors or func.__name__.startswith("new_"):
        size += sum(math.prod(shape) for shape in args if isinstance(shape, (list, tuple)) and _whole(shape))
    return size


def _whole(numbers: Sequence[Any]) -> bool:
    return all(isinstance(number, int) for number in numbers)


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
    """Numbers for a tensor without any, of its shape and type: True, zeros as whole numbers, else positive and unequal
    ones, in square matrices with a large diagonal, so that they have an inverse."""
    if not t.dtype.is_floating_point:
        return torch.ones(t.shape, dtype=t.dtype) if t.dtype is torch.bool else torch.zeros(t.shape, dtype=t.dtype)
    numbers = torch.linspace(0.5, 1, max(1, t.numel()), dtype=torch.float64)[: t.numel()].reshape(t.shape)
    if t.dim() > 1 and t.shape[-1] == t.shape[-2]:
        numbers = (numbers + numbers.mT) / 2 + t.shape[-1] * torch.eye(t.shape[-1], dtype=torch.float64)
    return numbers.to(t.dtype)
