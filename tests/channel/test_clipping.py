"""Clipping against its definition."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.channel.operation import Update
from bench.rng import generator
from tests.channel.operations import NUMBERS, operation, send


def test_a_long_update_is_scaled_down_and_a_short_one_is_left_alone() -> None:
    clipped, state = send("clip", torch.tensor([3.0, -4.0]), norm=2.5)
    assert clipped.decoded().tolist() == [1.5, -2.0]
    assert clipped.bytes == 8
    assert state == {}
    short = Update.of(torch.tensor([3.0, -4.0]))
    assert operation("clip", norm=5.0).send(short, {}, generator("test"))[0].values is short.values


@given(st.floats(0.01, 100))
def test_no_update_is_longer_than_the_norm(norm: float) -> None:
    clipped = send("clip", NUMBERS, norm=norm)[0].values
    assert float(clipped.norm()) == pytest.approx(min(norm, float(NUMBERS.norm())), rel=1e-5)
    torch.testing.assert_close(clipped / clipped.norm(), NUMBERS / NUMBERS.norm())
