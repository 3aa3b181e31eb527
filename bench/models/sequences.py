"""Models for sequences: time series `[channels, time]`, and rows of token numbers (`bench.data.TokenShape`)."""

from collections import OrderedDict
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from bench.data import TokenShape
from bench.errors import UserError
from bench.models.init import Rules
from bench.models.network import Network, need_tokens
from bench.models.recurrent import GRU, LSTM, Recurrent, uniform_hidden
from bench.plugin import MODELS

_SHORTEST = 16  # least number of steps in a series; two pools leave a quarter of them
_WINDOWS = (3, 4, 5)  # lengths of the convolutions, in words


@MODELS.register("har_cnn")
def har_cnn(shape: tuple[int, ...], classes: int, *, filters: PositiveInt = 64, hidden: PositiveInt = 100) -> nn.Module:
    """Network for series of 16 steps or more: two convolutions over 5 steps, each with ReLU and a max-pool of 2, and a
    hidden layer."""
    if len(shape) != 2 or isinstance(shape, TokenShape) or shape[1] < _SHORTEST:
        raise UserError(
            f"model 'har_cnn' needs series [channels, time] of at least {_SHORTEST} steps, and the samples have shape "
            f"{tuple(shape)}: take model 'mlp', or for tokens 'char_lstm'."
        )
    channels, steps = shape
    body: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv1d(channels, filters, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(filters, filters, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(filters * (steps // 4), hidden),
        relu3=nn.ReLU(),
    )
    return Network(nn.Sequential(body), nn.Linear(hidden, classes))


@MODELS.register("char_lstm")
def char_lstm(
    shape: tuple[int, ...],
    classes: int,
    *,
    embedding: PositiveInt = 8,
    hidden: PositiveInt = 256,
    layers: PositiveInt = 2,
) -> nn.Module:
    """LEAF's network for the next character (Caldas et al. 2018): embedding, LSTMs, and the last state to the head."""
    return _recurrent("char_lstm", LSTM, shape, classes, embedding, hidden, layers)


@MODELS.register("gru")
def gru(
    shape: tuple[int, ...],
    classes: int,
    *,
    embedding: PositiveInt = 8,
    hidden: PositiveInt = 128,
    layers: PositiveInt = 1,
) -> nn.Module:
    """An embedding, gated recurrent units and a dense layer (Cho et al. 2014, arXiv:1406.1078)."""
    return _recurrent("gru", GRU, shape, classes, embedding, hidden, layers)


@MODELS.register("fasttext")
def fasttext(shape: tuple[int, ...], classes: int, *, embedding: PositiveInt = 64) -> nn.Module:
    """The mean of the words' embeddings, padding left out (Joulin et al. 2017, arXiv:1607.01759; without n-grams)."""
    return Network(_MeanOfWords(need_tokens("fasttext", shape), embedding), nn.Linear(embedding, classes))


@MODELS.register("pfllib_fasttext")
def pfllib_fasttext(
    shape: tuple[int, ...], classes: int, *, embedding: PositiveInt = 512, hidden: PositiveInt = 512
) -> nn.Module:
    """PFLlib's fastText: mean embedding over all places, padding as zeros, and a linear hidden layer."""
    mean = _MeanOfPlaces(need_tokens("pfllib_fasttext", shape), embedding)
    body: OrderedDict[str, nn.Module] = OrderedDict(mean=mean, fc1=nn.Linear(embedding, hidden))
    return Network(nn.Sequential(body), nn.Linear(hidden, classes))


@MODELS.register("textcnn")
def textcnn(
    shape: tuple[int, ...], classes: int, *, embedding: PositiveInt = 64, filters: PositiveInt = 64
) -> nn.Module:
    """Convolutions over 3, 4 and 5 words, of each the largest value in the text (Kim 2014, arXiv:1408.5882).

    There is no dropout; padding has an embedding of zeros.
    """
    tokens = need_tokens("textcnn", shape)
    if tokens.length < max(_WINDOWS):
        raise UserError(f"model 'textcnn' needs texts of {max(_WINDOWS)} tokens or more; these have {tokens.length}.")
    return Network(_Windows(tokens, embedding, filters), nn.Linear(len(_WINDOWS) * filters, classes))


class _Words(nn.Module):
    """Embeds tokens."""

    def __init__(self, shape: TokenShape, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, width)
        self.padding = shape.padding

    def embedded(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings `[batch, length, width]`, zeros at padding; and `[batch, length, 1]`, where words are."""
        words = (tokens != self.padding).unsqueeze(2)
        return self.embedding(tokens) * words, words


class _MeanOfWords(_Words):
    def forward(self, tokens: Tensor) -> Tensor:
        """The mean embedding, `[batch, width]`; zeros for a text without words."""
        z, words = self.embedded(tokens)
        return z.sum(1) / words.sum(1).clamp(min=1)


class _MeanOfPlaces(_Words):
    def forward(self, tokens: Tensor) -> Tensor:
        """The sum of the words' embeddings over the length with padding, `[batch, width]`."""
        return self.embedded(tokens)[0].mean(1)


class _Windows(_Words):
    def __init__(self, shape: TokenShape, width: int, filters: int) -> None:
        super().__init__(shape, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, words) for words in _WINDOWS)

    def forward(self, tokens: Tensor) -> Tensor:
        """The largest value of each filter in the text, `[batch, windows x filters]`."""
        z = self.embedded(tokens)[0].transpose(1, 2)
        return torch.cat([convolution(z).amax(2).relu() for convolution in self.convolutions], dim=1)


class _Recurrent(Network):
    """A network whose recurrent layers have weights drawn as in torch."""

    rules: ClassVar[Rules] = {Recurrent: uniform_hidden}


class _OfLSTMs(_Recurrent):
    """LSTM networks, four times as fast one client after another; oneDNN's LSTM cannot be recorded (no workspace)."""

    better_alone: ClassVar[bool] = True
    recordable: ClassVar[bool] = False


class _Last(nn.Module):
    def forward(self, states: Tensor) -> Tensor:
        """The state after the last step: `[batch, hidden]` from `[batch, time, hidden]`."""
        return states[:, -1]


def _recurrent(
    name: str,
    kind: type[LSTM] | type[GRU],
    shape: tuple[int, ...],
    classes: int,
    embedding: int,
    hidden: int,
    layers: int,
) -> nn.Module:
    vocabulary = need_tokens(name, shape).vocabulary
    body: OrderedDict[str, nn.Module] = OrderedDict(embedding=nn.Embedding(vocabulary, embedding))
    width = embedding
    for i in range(1, layers + 1):
        body[f"recurrent{i}"] = kind(width, hidden)
        width = hidden
    body["last"] = _Last()
    network = _OfLSTMs if kind is LSTM else _Recurrent
    return network(nn.Sequential(body), nn.Linear(hidden, classes))
