"""Models for series and tokens: that they do what torch's own layers do, alone and mapped over clients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bench.data import TokenShape
from bench.errors import UserError
from bench.models.factory import build, describe
from bench.models.init import initialise
from bench.models.recurrent import GRU, LSTM, Recurrent
from bench.rng import generator
from tests.models.helpers import filled

TEXT, SERIES = TokenShape(9, 7), (2, 20)
SMALL = {"hidden": 5, "embedding": 3}
CASES = [
    ("char_lstm", TEXT, SMALL),
    ("gru", TEXT, {**SMALL, "layers": 2}),
    ("fasttext", TEXT, {"embedding": 4}),
    ("pfllib_fasttext", TEXT, {"embedding": 4, "hidden": 3}),
    ("textcnn", TEXT, {"embedding": 4, "filters": 3}),
    ("transformer", TEXT, {"width": 4, "heads": 2, "layers": 1}),
    ("har_cnn", SERIES, {"filters": 3, "hidden": 4}),
]
LANES, BATCH, CLASSES = 3, 4, 6


def inputs(shape: tuple[int, ...], *before: int) -> Tensor:
    rng = generator(0, "x")
    if isinstance(shape, TokenShape):
        return torch.from_numpy(rng.integers(shape.vocabulary, size=(*before, shape.length)))
    return torch.from_numpy(rng.normal(size=(*before, *shape)))


@pytest.mark.parametrize(("ours", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_recurrent_layers_are_torch_s(ours: Callable[[int, int], Recurrent], theirs: Callable[..., nn.Module]) -> None:
    """States and all gradients, in float64; the weights go by torch's names."""
    expected = theirs(3, 5, batch_first=True).double()
    layer = ours(3, 5).double()
    layer.load_state_dict({name.removesuffix("_l0"): value for name, value in expected.state_dict().items()})
    x = inputs(SERIES, 4).reshape(4, 2, 20)[:, :, :9].reshape(4, 6, 3)
    pull = inputs((6, 5), 4)
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
    tokens = inputs(TEXT, BATCH)
    states, _ = lstm(named["body.embedding.weight"][tokens])
    expected = states[:, -1] @ named["head.weight"].T + named["head.bias"]
    torch.testing.assert_close(net(tokens), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "shape", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # of LSTMs oneDNN computes the first
def test_mapped_over_clients_gradients_are_those_of_separate_modules(
    name: str, shape: tuple[int, ...], options: dict[str, int], dtype: torch.dtype
) -> None:
    """Recurrent layers are torch's own in the separate modules, and written out where they are mapped."""
    net = build(name, shape, CLASSES, options)
    lanes = [initialise(net, generator(0, "weights", lane), dtype) for lane in range(LANES)]
    stacked = {path: torch.stack([lane[path] for lane in lanes]) for path in lanes[0]}
    x = inputs(shape, LANES, BATCH)
    x = x.to(dtype) if x.is_floating_point() else x
    y = torch.from_numpy(generator(0, "y").integers(CLASSES, size=(LANES, BATCH)))

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, values, (x,)), y)

    found = vmap(grad(loss))(stacked, x, y)
    for i, lane in enumerate(lanes):
        module = filled(build(name, shape, CLASSES, options), lane)
        nn.functional.cross_entropy(module(x[i]), y[i]).backward()
        for path, p in module.named_parameters():
            near = (1e-9, 1e-12) if dtype == torch.float64 else (1e-4, 1e-6)
            torch.testing.assert_close(found[path][i], p.grad, rtol=near[0], atol=near[1])


def test_leaf_s_network_has_its_size() -> None:
    """An embedding of 80 x 8, two LSTMs of 256 with torch's two biases, a head of 256 x 80."""
    lstms = 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2)
    assert describe("char_lstm", TokenShape(80, 80), 80)["parameters"] == 80 * 8 + lstms + 257 * 80 == 819_920


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
    """Logits and gradients, with torch's own padding row: zeros that nothing trains; 16,648,708 values for AG News."""
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
    size = describe("pfllib_fasttext", TokenShape(200, 32_000), 4)["parameters"]
    assert size == 32_000 * 512 + 512 * 513 + 4 * 513


@pytest.mark.parametrize(
    "name", ["mlp", "logistic", "cnn", "resnet18", "vgg11", "har_cnn", "vit_tiny", "mobilenet_v3_small"]
)
def test_a_model_of_numbers_refuses_tokens(name: str) -> None:
    with pytest.raises(UserError, match=f"model '{name}' needs .*'char_lstm'"):
        build(name, TokenShape(80, 90), 5)


@pytest.mark.parametrize("name", ["char_lstm", "gru", "fasttext", "pfllib_fasttext", "textcnn", "transformer"])
def test_a_model_of_tokens_refuses_numbers(name: str) -> None:
    with pytest.raises(UserError, match=f"model '{name}' needs tokens, and the samples have shape"):
        build(name, (80, 90), 5)


def test_what_is_too_short_is_refused() -> None:
    with pytest.raises(UserError, match="at least 16 steps"):
        build("har_cnn", (3, 15), 5)
    with pytest.raises(UserError, match="5 tokens or more"):
        build("textcnn", TokenShape(4, 9), 5)
