"""Find the tensors that a function uses beside its arguments."""

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

from bench.params import leaves

LIBRARIES = ("bench", "numpy", "torch")  # their functions hold nothing of a method's


def held_tensors(function: Any) -> list[str]:
    """Return where a function, or a function that it calls, holds tensors, arrays or modules of its own.

    It inspects closures, defaults, arguments bound by `functools.partial`, attributes of callable objects, and module
    variables. A tensor behind an attribute of a module variable is not found.
    """
    tensors = Tensor | np.ndarray | nn.Module
    return [at for at, value in _held(function, set()) if any(isinstance(leaf, tensors) for _, leaf in leaves(value))]


def _held(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    match function:
        case functools.partial():
            yield "an argument of its `partial`", [function.args, function.keywords]
            yield from _held(function.func, seen)
        case MethodType():
            yield "the object it is bound to", vars(function.__self__)
            yield from _held(function.__func__, seen)
        case FunctionType():
            for at, value in _of_function(function):
                yield at, value
                if isinstance(value, FunctionType) and not value.__module__.startswith(LIBRARIES):
                    yield from _held(value, seen)
        case _:
            yield "an attribute", getattr(function, "__dict__", {})


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    closed = inspect.getclosurevars(function).nonlocals
    yield from ((f"closed-over {name!r}", value) for name, value in closed.items())
    for name, parameter in inspect.signature(function).parameters.items():
        yield f"the default of {name!r}", parameter.default
    for name in sorted(set(_names(function.__code__)) & function.__globals__.keys()):
        yield f"module variable {name!r}", function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
