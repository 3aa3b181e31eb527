"""Models for series and tokens: they do what torch's own layers do."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from bench.data import TokenShape
from bench.models.factory import build
from bench.models.init import initialise
from bench.models.recurrent import GRU, LSTM, Recurrent
from bench.rng import generator
from tests.models.helpers import filled, inputs

TEXT = TokenShape(9, 7)
SMALL = {"hidden": 5, "embedding": 3}
CLASSES = 6


@pytest.mark.parametrize(("ours", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_recurrent_layers_are_torch_s(ours: Callable[[int, int], Recurrent], theirs: Callable[..., nn.Module]) -> None:
    """States and all gradients, in float64; the weights go by torch's names."""
    expected = theirs(3, 5, batch_first=True).double()
    layer = ours(3, 5).double()
    layer.load_state_dict({name.removesuffix("_l0"): value for name, value in expected.state_dict().items()})
    x, pull = inputs((6, 3), 4), inputs((6, 5), 4)
    states, (wanted, _) = layer(x), expected(x)
    torch.testing.assert_close(states, wanted, rtol=0, atol=1e-12)
    found = torch.autograd.grad((states * pull).sum(), list(layer.parameters()))
    for one, right in zip(found, torch.autograd.grad((wanted * pull).sum(), list(expected.parameters())), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-10, atol=1e-12)


def test_the_char_lstm_reads_the_last_state_of_stacked_layers() -> None:
    meta = build("char_lstm", TEXT, CLASSES, SMALL)
    net = filled(meta, initialise(meta, generator(0, "weights"), torch.float64))
    lstm = nn.LSTM(3, 5, 2, batch_first=True).double()
    named = dict(net.named_parameters())
    lstm.load_state_dict(
        {
            f"{name}_l{layer - 1}": named[f"body.recurrent{layer}.{name}"]
            for layer in (1, 2)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
    )
    tokens = inputs(TEXT, 4)
    states, _ = lstm(named["body.embedding.weight"][tokens])
    expected = states[:, -1] @ named["head.weight"].T + named["head.bias"]
    torch.testing.assert_close(net(tokens), expected, rtol=0, atol=1e-12)


def test_recurrent_layers_start_as_torch_s() -> None:
    values = initialise(build("char_lstm", TokenShape(5, 2000), 3), generator(0, "weights"))
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        drawn = values[f"body.recurrent2.{name}"]
        assert 0.95 / math.sqrt(256) < drawn.abs().max() <= 1 / math.sqrt(256)
    table = values["body.embedding.weight"]
    assert abs(float(table.mean())) < 0.05
    assert abs(float(table.std()) - 1) < 0.05


def test_padding_is_no_word_of_fasttext() -> None:
    meta = build("fasttext", TEXT, CLASSES)
    net = filled(meta, initialise(meta, generator(0, "weights")))
    text = torch.tensor([[3, 1, 2]])
    padded = torch.tensor([[3, 0, 1, 2, 0, 0]])
    torch.testing.assert_close(net(text), net(padded))
    words = dict(net.named_parameters())["body.embedding.weight"][[3, 1, 2]]
    torch.testing.assert_close(net.features(text)[0], words.mean(0))  # type: ignore[operator]
    assert bool((net.features(torch.zeros(1, 4, dtype=torch.long)) == 0).all())  # type: ignore[operator]


def test_pfllib_s_fasttext_is_three_layers_of_torch() -> None:
    """Logits and gradients, with torch's own padding row: zeros that nothing trains."""
    meta = build("pfllib_fasttext", TEXT, CLASSES, {"embedding": 4, "hidden": 3})
    values = initialise(meta, generator(0, "weights"), torch.float64)
    net = filled(meta, values)
    text = torch.tensor([[3, 1, 2, 0, 0], [6, 0, 0, 0, 0]])
    words = nn.Embedding(TEXT.vocabulary, 4, padding_idx=0).double()
    words.weight.data[1:] = values["body.mean.embedding.weight"][1:]
    fc1, fc = nn.Linear(4, 3).double(), nn.Linear(3, CLASSES).double()
    fc1.load_state_dict({end: values[f"body.fc1.{end}"] for end in ("weight", "bias")})
    fc.load_state_dict({end: values[f"head.{end}"] for end in ("weight", "bias")})
    wanted = fc(fc1(words(text).mean(1)))
    torch.testing.assert_close(net(text), wanted, rtol=0, atol=1e-12)
    net(text).square().sum().backward()
    wanted.square().sum().backward()
    gradients = dict(net.named_parameters())["body.mean.embedding.weight"].grad
    torch.testing.assert_close(gradients, words.weight.grad)
