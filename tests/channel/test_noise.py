"""Noise and the clipping norm that adapts, against their definitions."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.channel.operation import Update
from bench.rng import generator
from tests.channel.operations import operation


def test_each_update_has_the_noise_or_the_sum_of_all_has_it() -> None:
    """By its standard deviation over 40,000 numbers."""
    zeros = replace(Update.of(torch.zeros(40_000)), bound=2.0, clients=16)
    for on, uploads in (("each", 1), ("sum", 16)):
        noise = operation("gaussian", noise=1.5, on=on)
        sent = [noise.send(zeros, {}, generator("test", upload))[0].values for upload in range(uploads)]
        assert float(torch.stack(sent).sum(0).std()) == pytest.approx(1.5 * 2, rel=0.02)


def test_the_adaptive_norm_moves_by_hand() -> None:
    """Three of four updates are short, a half should be: the norm falls by exp(-0.2 / 4)."""
    clip = operation("adaptive_clip", norm=2.0, count_noise=0.0)
    answers = []
    for length in (1.0, 1.5, 2.0, 6.0):
        sent = clip.send(Update.of(torch.tensor([0.0, length])), {}, generator("test"))[0]
        assert (float(sent.values.norm()), sent.bound, sent.extra) == (min(length, 2.0), 2.0, 1)
        assert sent.answer is not None
        answers.append(sent.answer)
    assert answers == [1, 1, 1, 0]
    shared = clip.close({}, answers, generator("test"), 4)
    assert shared["norm"] == pytest.approx(2.0 * math.exp(-0.2 * 0.25))
    following = replace(Update.of(torch.tensor([1.95])), shared=shared)
    assert clip.send(following, {}, generator("test"))[0].values.tolist() == pytest.approx([shared["norm"]])


@given(st.integers(1, 9))
def test_the_adaptive_norm_comes_to_the_quantile(tenths: int) -> None:
    lengths = [1.3**power for power in range(10)]
    clip, shared = operation("adaptive_clip", norm=0.1, quantile=tenths / 10 - 0.05, count_noise=0.0), {}
    for _ in range(400):
        norm = shared.get("norm", 0.1)
        shared = clip.close(shared, [float(length <= norm) for length in lengths], generator("test"), 10)
    assert 1.3 ** (tenths - 1) / 1.15 < shared["norm"] < 1.3 ** (tenths - 1) * 1.15


def test_the_share_of_short_updates_is_of_the_clients_that_a_round_has_on_average() -> None:
    """So that a client moves it by half a client, whoever else is there; of nobody it is a half."""
    clip = operation("adaptive_clip", count_noise=0.0, rate=1.0, norm=1.0)

    def share(*answers: float) -> float:
        return 0.5 - math.log(clip.close({}, answers, generator("test"), 4)["norm"])

    assert share() == pytest.approx(0.5)
    for others in ([], [1.0], [0.0, 0.0, 1.0], [1.0] * 7):
        for answer in (0.0, 1.0):
            assert abs(share(*others, answer) - share(*others)) == pytest.approx(0.5 / 4)


def test_the_noise_of_the_count_is_drawn() -> None:
    clip = operation("adaptive_clip", count_noise=0.1, rate=1.0, norm=1.0)
    shares = [0.5 - math.log(clip.close({}, [1.0, 0.0], generator("test", draw), 2)["norm"]) for draw in range(2000)]
    assert float(torch.tensor(shares).std()) == pytest.approx(0.1, rel=0.05)
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.01)
