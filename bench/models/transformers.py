"""Small transformers (Vaswani et al. 2017, arXiv:1706.03762) for text and images, with pre-norm and without dropout.

Attention is written out, because torch's layers take other code paths without gradients, which round differently.
"""

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from bench.data import Floats, TokenShape
from bench.errors import UserError
from bench.models.init import Rules, without_padding
from bench.models.network import Network, need_images, need_tokens
from bench.plugin import MODELS

_NOWHERE = -1e9  # score of a masked position: its weight is 0, and the softmax stays finite for a text without words
_LARGE = 64  # pixels; larger images are cut into patches of 16 x 16, as for ImageNet


@MODELS.register("transformer")
def transformer(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: PositiveInt = 64,
    layers: PositiveInt = 2,
    heads: PositiveInt = 4,
) -> nn.Module:
    """Transformer for tokens: embeddings, learned positions, blocks of attention, the mean of the words.

    Padding is left out.
    """
    tokens = need_tokens("transformer", shape)
    _need_heads("transformer", width, heads)
    return _Transformer(_OfWords(tokens, width, layers, heads), nn.Linear(width, classes))


@MODELS.register("vit_tiny")
def vit_tiny(
    shape: tuple[int, ...],
    classes: int,
    *,
    patch: PositiveInt | None = None,
    width: PositiveInt = 192,
    layers: PositiveInt = 12,
    heads: PositiveInt = 3,
) -> nn.Module:
    """Transformer for images: DeiT-Ti (Touvron et al. 2021, arXiv:2012.12877), the mean of patches for a class token.

    Args:
        patch: side of a patch in pixels; default: 4, or 16 for images with a side of more than 64 pixels.
    """
    _, height, across = need_images("vit_tiny", shape)
    side = patch or (16 if max(height, across) > _LARGE else 4)
    if height % side or across % side:
        raise UserError(f"model 'vit_tiny': images of {height} x {across} pixels have no patches of {side} x {side}")
    _need_heads("vit_tiny", width, heads)
    return _VisionTransformer(_OfPatches(shape, side, width, layers, heads), nn.Linear(width, classes))


def _need_heads(name: str, width: int, heads: int) -> None:
    if width % heads:
        raise UserError(f"model {name!r}: {heads} heads do not divide a width of {width}")


class _Positions(nn.Module):
    """Learned positions: a vector for each position, added to the embedding there."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Attention output `[batch, places, width]`; `seen [batch, places]` is False at padding (None: no padding)."""
        batch, places, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, places, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        if seen is not None:
            scores = torch.where(seen[:, None, None], scores, _NOWHERE)
        mixed: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, places, width))
        return mixed


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), seen)
        features: Tensor = x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))
        return features


class _Encoder(nn.Module):
    """Learned positions, attention blocks, a final norm, and the mean over the positions that are seen."""

    def __init__(self, places: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.positions = _Positions(places, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """Features `[batch, width]` of inputs `[batch, places, width]`; zeros if no position is seen."""
        x = self.positions(x)
        for block in self.blocks:
            x = block(x, seen)
        x = self.norm(x)
        if seen is None:
            return x.mean(1)
        mask = seen.unsqueeze(2)
        return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


class _OfWords(nn.Module):
    def __init__(self, shape: TokenShape, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.encoder = _Encoder(shape.length, width, layers, heads)
        self.padding = shape.padding

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.encoder(self.embedding(tokens), tokens != self.padding)
        return features


class _OfPatches(nn.Module):
    """Cuts images into patches and encodes them.

    The embedding of a patch is one linear map of its pixels; this equals a convolution with stride equal to its size.
    """

    def __init__(self, shape: tuple[int, ...], side: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.side = side
        self.embedding = nn.Linear(channels * side * side, width)
        self.encoder = _Encoder((height // side) * (across // side), width, layers, heads)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, across = x.shape
        cut = x.reshape(n, channels, height // self.side, self.side, across // self.side, self.side)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        features: Tensor = self.encoder(self.embedding(patches))
        return features


def small_normal(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights from N(0, 0.02^2), as for the embeddings and positions of ViT and BERT; zeros for a padding token."""
    return without_padding(layer, rng.normal(0.0, 0.02, layer.get_parameter(name).shape))


class _Transformer(Network):
    rules: ClassVar[Rules] = {nn.Embedding: small_normal, _Positions: small_normal}


class _VisionTransformer(_Transformer):
    """Transformer for images, whose clients train one by one on a CPU.

    A step of a cohort took 1.5 times as long there (DeiT-Ti's sizes, 8 clients).
    """

    better_alone: ClassVar[bool] = True
