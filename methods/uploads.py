"""Uploads as rows of a matrix, for servers that compare them number by number or by their distances."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.method import Message, Params, mean

OfRows = Callable[[Tensor], Tensor]


def main(value: Params | Tensor) -> Tensor:
    """The weights of a model value, or the tensor."""
    return value.weights if isinstance(value, Params) else value


def values_of(messages: Sequence[Message], name: str) -> list[Any]:
    """The uploads of that name.

    Raises:
        ValueError: there are none, or they are of different architectures.
    """
    values = [m[name] for m in messages if name in m.values]
    if not values or any(isinstance(v, Params) and v.spec != values[0].spec for v in values):
        mean(messages, name)  # says what is wrong
    return values


def in_rows(tensors: Sequence[Tensor]) -> Tensor:
    """A matrix `[clients, numbers]`."""
    return torch.stack([tensor.reshape(-1) for tensor in tensors])


def by_rows(messages: Sequence[Message], name: str, function: OfRows) -> Any:
    """The value whose numbers a function makes of the uploads' rows `[clients, numbers]`; statistics alike."""
    values = values_of(messages, name)
    if isinstance(values[0], Params):
        weights, buffers = in_rows([v.weights for v in values]), in_rows([v.buffers for v in values])
        return Params(function(weights), function(buffers), values[0].spec)
    return function(in_rows(values)).reshape(values[0].shape)


def weighted(messages: Sequence[Message], name: str, weights: OfRows) -> Any:
    """The mean of the uploads with weights `[clients]` that a function makes of their rows; statistics alike.

    Uploads of weight 0 are left out: their numbers need not be finite.
    """
    share = weights(in_rows([main(v) for v in values_of(messages, name)]))
    kept = share > 0
    return by_rows(messages, name, lambda rows: share[kept] @ rows[kept])


def trimmed(rows: Tensor, k: int) -> Tensor:
    """The mean of each column without its k largest and k smallest numbers."""
    return rows.sort(0).values[k : len(rows) - k].mean(0)


def median(rows: Tensor) -> Tensor:
    """The median of each column; of an even number of rows the mean of the middle two."""
    return trimmed(rows, (len(rows) - 1) // 2)


def distances(rows: Tensor, point: Tensor) -> Tensor:
    """Euclidean distances `[clients]` of rows from a point."""
    return torch.linalg.vector_norm(rows - point, dim=1)
