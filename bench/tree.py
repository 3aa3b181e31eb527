"""Nested values: model values, tensors and plain values in dictionaries, lists and tuples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from bench.params import Params


def parts(value: Any) -> list[Any]:
    """The model values and tensors in nested values."""
    if isinstance(value, Params | Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found: list[Any] = []
    for one in value:
        found += parts(one)
    return found


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """What nested values hold, a model's weights and buffers apart, each with the way to it, e.g. `['w'].weights`."""
    match value:
        case Params():
            yield f"{where}.weights", value.weights
            yield f"{where}.buffers", value.buffers
        case Mapping():
            for key, one in value.items():
                yield from leaves(one, f"{where}[{key!r}]")
        case list() | tuple():
            for i, one in enumerate(value):
                yield from leaves(one, f"{where}[{i}]")
        case _:
            yield where, value


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same nested values with each tensor, a model's weights and buffers too, replaced by the function of it."""
    match value:
        case Params():
            return Params(function(value.weights), function(value.buffers), value.spec)
        case Tensor():
            return function(value)
        case dict():
            return {key: map_tensors(function, one) for key, one in value.items()}
        case list():
            return [map_tensors(function, one) for one in value]
    return value


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors of nested dictionaries and sequences, a dictionary's by name: its own order may change.

    A fifth of the time that PyTorch's general way takes.
    """
    for value in values:
        if isinstance(value, dict):
            yield from tensors_of([value[name] for name in sorted(value)])
        else:
            yield value


def filled(values: Any, tensors: Iterator[Any]) -> Any:
    """The same nested dictionaries and tuples with other tensors, in the order of `tensors_of`."""
    if isinstance(values, dict):
        return {name: filled(values[name], tensors) for name in sorted(values)}
    if isinstance(values, tuple):
        return tuple(filled(value, tensors) for value in values)
    return next(tensors)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that show the same numbers in the same memory."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
