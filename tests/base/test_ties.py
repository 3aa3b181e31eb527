"""Choices by value: against a sort, and where values tie up to rounding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.ties import largest, smallest

WHOLE = st.lists(st.integers(-5, 5), min_size=1, max_size=12)


@given(WHOLE, st.data())
def test_the_first_of_equal_values_are_chosen(numbers: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(numbers)))
    values = torch.tensor(numbers, dtype=torch.float64)
    by_value = sorted(range(len(numbers)), key=lambda i: (numbers[i], i))
    assert smallest(values, count).nonzero().flatten().tolist() == sorted(by_value[:count])
    by_value = sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))
    assert largest(values, count).nonzero().flatten().tolist() == sorted(by_value[:count])


@given(WHOLE, st.lists(st.floats(-1, 1), min_size=12, max_size=12), st.data())
def test_rounding_decides_nothing(numbers: list[int], noise: list[float], data: st.DataObject) -> None:
    """Of numbers that are equal but for some last digits the same are chosen as of equal ones."""
    count = data.draw(st.integers(0, len(numbers)))
    values = torch.tensor(numbers, dtype=torch.float32)
    last_digits = 8 * torch.finfo(torch.float32).eps * torch.tensor(noise[: len(numbers)])
    for choose in (smallest, largest):
        assert torch.equal(choose(values, count), choose(values + last_digits, count, unit=1.0))
        assert torch.equal(choose(values, count), choose(values * (1 + last_digits), count))


def test_columns_are_chosen_from_by_themselves() -> None:
    values = torch.tensor([[1.0, 9.0], [2.0, 8.0], [0.0, 8.0]])
    assert smallest(values, 2).tolist() == [[True, False], [False, True], [True, True]]
    assert largest(values, 1).tolist() == [[False, True], [True, False], [False, False]]


@pytest.mark.parametrize("choose", [smallest, largest])
def test_what_is_no_number_is_chosen_last(choose: object) -> None:
    assert callable(choose)
    values = torch.tensor([math.nan, 1.0, math.nan, 2.0])
    assert choose(values, 2).tolist() == [False, True, False, True]
    assert choose(values, 3).tolist() == [True, True, False, True]
    sign = 1 if choose is smallest else -1
    assert choose(torch.tensor([sign * math.inf, 1.0, 2.0]), 2).tolist() == [False, True, True]
    assert choose(torch.tensor([sign * math.inf, sign * math.inf, 2.0]), 2).tolist() == [True, False, True]
