"""Models for series, tokens and patches: they do what torch's own layers do, and padding is not seen."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bench.data import TokenShape
from bench.models.factory import build
from bench.models.init import initialise
from bench.models.sequences import GRU, LSTM, Recurrent
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


WORDS = TokenShape(6, 9)
SIZES = {"width": 8, "layers": 2, "heads": 2}


def by_torch(values: dict[str, Tensor], embedded: Tensor, hidden: Tensor | None = None) -> Tensor:
    """What torch's encoder makes of embeddings `[batch, places, 8]`, with our weights."""
    layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False).double()
    names = {
        "norm1": "norm1", "norm2": "norm2", "fc1": "linear1", "fc2": "linear2", "attention.out": "self_attn.out_proj",
    }  # fmt: skip
    given = {f"norm.{kind}": values[f"body.encoder.norm.{kind}"] for kind in ("weight", "bias")}
    for k in range(2):
        at = f"body.encoder.blocks.{k}"
        for kind in ("weight", "bias"):
            given[f"layers.{k}.self_attn.in_proj_{kind}"] = values[f"{at}.attention.qkv.{kind}"]
            given |= {f"layers.{k}.{theirs}.{kind}": values[f"{at}.{ours}.{kind}"] for ours, theirs in names.items()}
    encoder.load_state_dict(given)
    found: Tensor = encoder(embedded + values["body.encoder.positions.weight"], src_key_padding_mask=hidden)
    return found


def test_a_transformer_of_words_is_torch_s_encoder() -> None:
    meta = build("transformer", WORDS, 5, SIZES)
    values = initialise(meta, generator(0, "weights"), torch.float64)
    tokens = torch.tensor([[3, 1, 2, 8, 5, 4], [7, 7, 0, 0, 0, 0]])
    states = by_torch(values, values["body.embedding.weight"][tokens], tokens == 0)
    features = torch.stack([states[0].mean(0), states[1, :2].mean(0)])
    net = filled(meta, values)
    torch.testing.assert_close(net.features(tokens), features, rtol=0, atol=1e-12)  # type: ignore[operator]
    logits = features @ values["head.weight"].T + values["head.bias"]
    torch.testing.assert_close(net(tokens), logits, rtol=0, atol=1e-12)


def test_a_text_without_words_has_finite_gradients() -> None:
    meta = build("transformer", WORDS, 5, SIZES)
    net = filled(meta, initialise(meta, generator(0, "weights")))
    loss = net(torch.zeros(2, 6, dtype=torch.long)).square().sum()
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in net.parameters())
    assert bool((net.features(torch.zeros(1, 6, dtype=torch.long)) == 0).all())  # type: ignore[operator]


def test_a_transformer_of_pictures_is_torch_s_encoder() -> None:
    """Patches are what a convolution whose stride is its size makes of them."""
    meta = build("vit_tiny", (3, 8, 12), 5, {**SIZES, "patch": 4})
    values = initialise(meta, generator(0, "weights"), torch.float64)
    x = torch.from_numpy(generator(0, "x").normal(size=(2, 3, 8, 12)))
    kernel = values["body.embedding.weight"].reshape(8, 3, 4, 4)
    patches = nn.functional.conv2d(x, kernel, values["body.embedding.bias"], stride=4).flatten(2).transpose(1, 2)
    features = by_torch(values, patches).mean(1)
    torch.testing.assert_close(filled(meta, values).features(x), features, rtol=0, atol=1e-12)  # type: ignore[operator]
