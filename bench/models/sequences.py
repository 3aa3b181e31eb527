"""Models for sequences: time series `[channels, time]`, and rows of token numbers (`bench.data.TokenShape`)."""

import math
from collections import OrderedDict
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from bench.data import Floats, TokenShape
from bench.errors import UserError
from bench.models.init import Rules
from bench.models.network import Network, need_tokens
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


class Recurrent(nn.Module):
    """A recurrent layer with torch's names and shapes of weights, and a zero initial state.

    It is written out step by step, so that it runs under `vmap`; those of `torch.nn` do not.
    """

    def __init__(self, gates: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(gates * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(gates * hidden))
        self.bias_hh = nn.Parameter(torch.empty(gates * hidden))

    def _start(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self.weight_hh.shape[1])


class LSTM(Recurrent):
    """One layer of `nn.LSTM` (Hochreiter and Schmidhuber 1997, forget gates); gates: input, forget, cell, output.

    For one client on a CPU, torch's is called, which is twice as fast; torch's GRU is not.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(4, inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states `[batch, time, hidden]` of inputs `[batch, time, inputs]`."""
        if x.device.type == "cpu" and not torch._C._are_functorch_transforms_active():
            weights: list[Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
            start = self._start(x).unsqueeze(0)
            # one layer in one direction, without dropout; computed by oneDNN
            by_torch: Tensor = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, True)[0]
            return by_torch
        products = nn.functional.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)  # one product for all steps
        hidden = cell = self._start(x)
        states = []
        for product in products.unbind(1):
            i, f, g, o = (product + nn.functional.linear(hidden, self.weight_hh)).chunk(4, dim=1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, dim=1)


class GRU(Recurrent):
    """One layer of `nn.GRU` (Cho et al. 2014, arXiv:1406.1078); gates: reset, update, new."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(3, inputs, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states `[batch, time, hidden]` of inputs `[batch, time, inputs]`."""
        products = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        hidden = self._start(x)
        states = []
        for product in products.unbind(1):
            r, z, n = product.chunk(3, dim=1)
            of_r, of_z, of_n = nn.functional.linear(hidden, self.weight_hh, self.bias_hh).chunk(3, dim=1)
            update = (z + of_z).sigmoid()
            new = (n + (r + of_r).sigmoid() * of_n).tanh()
            hidden = new + update * (hidden - new)
            states.append(hidden)
        return torch.stack(states, dim=1)


def uniform_hidden(layer: nn.Module, name: str, rng: np.random.Generator) -> Floats:
    """Weights and biases from U(-1/√hidden, 1/√hidden): torch's default for recurrent layers."""
    bound = 1 / math.sqrt(layer.get_parameter("weight_hh").shape[1])
    return rng.uniform(-bound, bound, layer.get_parameter(name).shape)


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
