"""Each compression against numbers worked out by hand, and what holds for all updates."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.channel.operation import Update
from bench.rng import generator
from tests.channel.operations import NUMBERS, operation, send

updates = st.lists(st.integers(-800, 800).map(lambda eighths: eighths / 8), min_size=1, max_size=40).map(torch.tensor)


def test_top_k_sends_the_largest_and_keeps_the_rest() -> None:
    sent, state = send("top_k", NUMBERS, share=0.4)
    assert sent.decoded().tolist() == [3, 0, 0, -4, 0]
    assert state["memory"].tolist() == [0, -1, 0.5, 0, 2]
    assert sent.bytes == math.ceil((2 * 32 + 5) / 8), "a bit for each position is shorter than two numbers of 3 bits"


def test_rounding_does_not_choose_between_numbers_of_equal_size() -> None:
    """The two rows of a head for two classes get opposite updates: one of each pair is larger by rounding only."""
    for sign in (1, -1):
        last_digit = 1 + sign * torch.finfo(torch.float32).eps
        sent, _ = send("top_k", torch.tensor([0.1, -0.5, 0.5 * last_digit, 0.0]), share=0.25)
        assert sent.positions is not None
        assert sent.positions.tolist() == [1]


def test_positions_are_counted_as_the_shorter_of_a_list_and_a_bit_for_each_number() -> None:
    few, _ = send("top_k", torch.arange(1000.0), share=0.01)
    many, _ = send("top_k", torch.arange(1000.0), share=0.5)
    assert (few.bytes, many.bytes) == (math.ceil(10 * (32 + 10) / 8), math.ceil((500 * 32 + 1000) / 8))


def test_random_positions_are_drawn_from_the_address_and_not_sent() -> None:
    sent, state = send("random_k", NUMBERS, share=0.4)
    again, _ = send("random_k", NUMBERS, share=0.4)
    assert sent.positions is not None
    assert torch.equal(sent.decoded(), again.decoded())
    assert sent.bytes == 2 * 4
    drawn = [send("random_k", NUMBERS, draw=draw, share=0.2)[0].positions for draw in range(60)]
    assert {int(p) for p in drawn if p is not None} == {0, 1, 2, 3, 4}
    assert torch.equal(sent.decoded() + state["memory"], NUMBERS)


@given(updates, st.sampled_from(["top_k", "random_k"]), st.floats(0.01, 1))
def test_what_was_sent_and_what_is_kept_make_up_what_was_to_be_sent(values: Tensor, name: str, share: float) -> None:
    """In every round, to the bit: nothing is lost and nothing comes twice."""
    state: Any = {}
    for draw in range(4):
        wanted = values + state["memory"] if state else values
        sent, state = send(name, values, state, draw, share=share)
        kept = state["memory"] if state else torch.zeros_like(wanted)
        assert torch.equal(sent.decoded() + kept, wanted)
        assert not (sent.decoded() * kept).any()


@given(updates, st.integers(2, 12))
def test_quantised_numbers_are_levels_of_the_norm_next_to_what_they_were(values: Tensor, bits: int) -> None:
    sent, _ = send("quantise", values, bits=bits)
    step = float(values.norm()) / (2 ** (bits - 1) - 1)
    assert (sent.values - values).abs().max() <= step * (1 + 1e-4)
    if step:
        levels = sent.values / step
        assert (levels - levels.round()).abs().max() < 1e-2
    assert sent.bytes == math.ceil((len(values) * bits + 32) / 8)


def test_quantising_is_unbiased() -> None:
    """Four standard errors of the mean of 4000 draws; one draw is far off, as there is only one level (2 bits)."""
    values = NUMBERS.double()
    drawn = torch.stack([send("quantise", values, draw=draw, bits=2)[0].values for draw in range(4000)])
    assert (drawn[0] - values).abs().max() > 0.5
    assert ((drawn.mean(0) - values).abs() <= 4 * drawn.std(0) / 4000**0.5).all()


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.float16, 16)])
def test_as_many_bits_as_there_are_change_nothing(dtype: torch.dtype, bits: int) -> None:
    update = Update.of(NUMBERS.to(dtype))
    assert operation("quantise", bits=bits).send(update, {}, generator("test"))[0] is update


def test_many_bits_change_hardly_anything() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=100))
    torch.testing.assert_close(send("quantise", values, bits=31)[0].values, values, rtol=0, atol=1e-7)


def test_signs_have_the_mean_absolute_value() -> None:
    sent, _ = send("sign", torch.tensor([3.0, -1.0, 0.0, -4.0]))
    assert sent.decoded().tolist() == [2, -2, 2, -2]
    assert sent.bytes == math.ceil((4 + 32) / 8)


def test_casts() -> None:
    values = torch.tensor([1.0, 1 / 3, -127.4, 0.6])
    assert torch.equal(send("cast", values, to="fp16")[0].values, values.half().float())
    assert torch.equal(send("cast", values, to="bf16")[0].values, values.bfloat16().float())
    whole = torch.tensor([127.0, 1.2, -3.6, 0.4])
    assert send("cast", whole, to="int8")[0].values.tolist() == [127, 1, -4, 0]
    assert [send("cast", values, to=to)[0].bytes for to in ("fp16", "bf16", "int8")] == [8, 8, 8]


@pytest.mark.parametrize("name", ["quantise", "sign", "cast"])
def test_an_update_of_zeros_arrives_as_zeros(name: str) -> None:
    for settings in [{"to": "int8"}, {"to": "fp16"}] if name == "cast" else [{}]:
        assert send(name, torch.zeros(5), **settings)[0].decoded().tolist() == [0] * 5


def test_selected_numbers_are_encoded() -> None:
    """Positions and scale are counted once, and what is not sent stays 0 although the sign of 0 is plus."""
    sent, _ = send("top_k", NUMBERS, share=0.4)
    coded, _ = operation("sign").send(sent, {}, generator("test"))
    assert coded.decoded().tolist() == [3.5, 0, 0, -3.5, 0]
    assert coded.bytes == math.ceil((2 * 1 + 32 + 5) / 8)
