"""Choices by value that rounding does not decide: values that are equal up to rounding are taken in their order.

Two executors compute the same numbers but for their last digits. Where values tie, as those of pixels that are always
black, a plain sort would choose others in each.
"""

import math

import torch
from torch import Tensor

_DIGITS = 128
"""So many steps of the type's precision are rounding: 1.5e-5 of a number in float32."""


def smallest(values: Tensor, count: int, unit: Tensor | float = 0.0) -> Tensor:
    """Mark the smallest values of each column: of those equal to the last one, up to rounding, the first.

    Args:
        values: `[n, ...]`; what is not a number is chosen last.
        count: how many of each column.
        unit: `[...]` size of the numbers that the values were computed from, whose rounding they have beside their own.

    Returns:
        `[n, ...]` true for those that are chosen.
    """
    if not count:
        return torch.zeros_like(values, dtype=torch.bool)
    values = values.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    last = values.topk(count, 0, largest=False, sorted=False).values.amax(0)
    slack = _DIGITS * torch.finfo(values.dtype).eps * (last.abs() + unit)
    slack = torch.where(last.isfinite(), slack, 0.0)
    sure = values < last - slack
    equal = (values <= last + slack) & ~sure
    return sure | (equal & (equal.cumsum(0) <= count - sure.sum(0)))


def largest(values: Tensor, count: int, unit: Tensor | float = 0.0) -> Tensor:
    """Mark the largest values of each column, as `smallest` marks the smallest."""
    return smallest(-values, count, unit)
