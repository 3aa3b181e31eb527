"""Transformers: torch's encoder computes the same, and padding is not seen."""

import torch
from torch import Tensor, nn

from bench.data import TokenShape
from bench.models.factory import build
from bench.models.init import initialise
from bench.rng import generator
from tests.models.helpers import filled

TEXT = TokenShape(6, 9)
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


def test_of_words() -> None:
    meta = build("transformer", TEXT, 5, SIZES)
    values = initialise(meta, generator(0, "weights"), torch.float64)
    tokens = torch.tensor([[3, 1, 2, 8, 5, 4], [7, 7, 0, 0, 0, 0]])
    states = by_torch(values, values["body.embedding.weight"][tokens], tokens == 0)
    features = torch.stack([states[0].mean(0), states[1, :2].mean(0)])
    net = filled(meta, values)
    torch.testing.assert_close(net.features(tokens), features, rtol=0, atol=1e-12)  # type: ignore[operator]
    logits = features @ values["head.weight"].T + values["head.bias"]
    torch.testing.assert_close(net(tokens), logits, rtol=0, atol=1e-12)


def test_a_text_without_words() -> None:
    meta = build("transformer", TEXT, 5, SIZES)
    net = filled(meta, initialise(meta, generator(0, "weights")))
    loss = net(torch.zeros(2, 6, dtype=torch.long)).square().sum()
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in net.parameters())
    assert bool((net.features(torch.zeros(1, 6, dtype=torch.long)) == 0).all())  # type: ignore[operator]


def test_of_pictures() -> None:
    """Patches are what a convolution whose stride is its size makes of them."""
    meta = build("vit_tiny", (3, 8, 12), 5, {**SIZES, "patch": 4})
    values = initialise(meta, generator(0, "weights"), torch.float64)
    x = torch.from_numpy(generator(0, "x").normal(size=(2, 3, 8, 12)))
    kernel = values["body.embedding.weight"].reshape(8, 3, 4, 4)
    patches = nn.functional.conv2d(x, kernel, values["body.embedding.bias"], stride=4).flatten(2).transpose(1, 2)
    features = by_torch(values, patches).mean(1)
    torch.testing.assert_close(filled(meta, values).features(x), features, rtol=0, atol=1e-12)  # type: ignore[operator]
