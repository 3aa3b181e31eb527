"""Draws of a network in training (dropout, drop path), from a stream that belongs to one step of one client.

PyTorch draws from one generator for the process, so a mask would depend on which clients are computed together. Here
an element of the n-th draw of a step is a function of the step's key, of n and of the element's place. The function is
SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators") in integer arithmetic, so the
bits are the same in a cohort, alone, in a recording, after a resume, and on a GPU. It is a tenth of the operations of
Philox, of which a step would launch a hundred for each mask.
"""

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from bench.errors import UserError

_GAMMA, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # as signed 64-bit numbers
_BITS = 24  # of a draw: those of a float32


class NetworkDraws(TorchFunctionMode):
    """Answers what the code of a network draws, as long as it is entered.

    Args:
        key: that of the step, an int64 `[]`; `vmap` gives each client its own.
        position: where in its batch the only sample is that the network gets, `[]` (None: it gets the batch). Each
            sample alone has the draws that it has in the batch, if samples come first in what is drawn.

    Attributes:
        shapes: those of the draws so far.
    """

    def __init__(self, key: Tensor, position: Tensor | None = None) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self._drawn: list[tuple[Tensor, Tensor]] = []
        self._key = key
        self._position = position

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self._drawn:
            args, kwargs = tree_map_only(Tensor, self._latest, (args, kwargs or {}))
        answer = _ANSWERS.get(func)
        if answer is not None and (kwargs or {}).get("out") is not None:
            raise UserError(f"the network calls {func.__name__} with `out`: read what the function returns instead")
        return func(*args, **(kwargs or {})) if answer is None else answer(self, func, *args, **(kwargs or {}))

    def bits(self, like: Tensor) -> Tensor:
        """The next draw: numbers from 0 to 2^24 - 1, int64 in the shape of `like`."""
        if like.is_complex():
            raise UserError("the network draws complex numbers: draw real and imaginary parts, as by `torch.randn`")
        place = torch.arange(like.numel(), device=like.device)
        if self._position is not None:
            place = place + self._position * like.numel()
        self.shapes.append(like.shape)
        start = _mixed(self._key + _wrapped(_GAMMA * len(self.shapes)))
        return _shifted(_mixed(start + _GAMMA * (place + 1)), 64 - _BITS).view(like.shape)

    def uniform(self, like: Tensor) -> Tensor:
        """The next draw: uniform in [0, 1), in the shape and type of `like`; of few digits, as many as it holds."""
        digits = min(_BITS, 1 - round(math.log2(torch.finfo(like.dtype).eps)))  # more would round up to 1
        return (self.bits(like) >> (_BITS - digits)).to(like.dtype) * 2.0**-digits

    def put(self, tensor: Tensor, drawn: Tensor) -> Tensor:
        """Let code read `drawn` wherever it reads a tensor that it drew into in place: that is one tensor for all
        clients and cannot hold a draw of each."""
        if tensor._is_view():
            raise UserError(
                "the network draws into a part of a tensor in place: draw the part alone, as by `torch.rand_like`"
            )
        earlier = [(t, drawn if value is tensor else value) for t, value in self._drawn]  # a tensor is drawn into again
        self._drawn = [*earlier, (tensor, drawn)]
        return drawn

    def _latest(self, tensor: Tensor) -> Tensor:
        """Return what code reads that reads a tensor."""
        for written, drawn in self._drawn:
            if tensor is written:
                return drawn
            if tensor._is_view() and tensor._base is written:
                raise UserError(
                    "the network reads a part of a tensor that it drew into in place: take the part after the draw"
                )
        return tensor

    def kept(self, like: Tensor, p: float) -> Tensor:
        """The next draw: whether each number is kept that is dropped with probability p, in the shape of `like`."""
        kept: Tensor = self.bits(like) >= round(p * 2**_BITS)
        return kept

    def normal(self, like: Tensor) -> Tensor:
        """The next draw: standard normal numbers in the shape and type of `like`, by the inverse of their distribution
        in float64."""
        between = (self.bits(like).double() + 0.5) * 2.0 ** (1 - _BITS) - 1
        return (math.sqrt(2) * torch.erfinv(between)).to(like.dtype)

    def integers(self, like: Tensor, low: int, high: int) -> Tensor:
        """The next draw: whole numbers from `low` to `high` - 1, in the shape and type of `like`."""
        return (low + (self.bits(like) * (high - low) >> _BITS)).to(like.dtype)


def drops(layer: nn.Module) -> bool:
    """Whether a layer of torch drops something in training; draws of functions only the trial of a model sees."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    return isinstance(layer, nn.MultiheadAttention | nn.RNNBase) and layer.dropout > 0


def _mixed(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _wrapped(number: int) -> int:
    """The signed 64-bit number that a product of such numbers wraps around to, as that of tensors does."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(z: Tensor, n: int) -> Tensor:
    """Shift bits to the right, and zeros in from the left: torch would repeat the sign."""
    shifted: Tensor = (z >> n) & (2 ** (64 - n) - 1)
    return shifted


def _dropout(
    draws: NetworkDraws,
    func: Any,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool = True,
) -> Tensor:
    """`functional.dropout`, `torch.dropout`, whose third argument is called `train`, and `functional.dropout1d` to
    `dropout3d`, by which whole channels of a batch are dropped."""
    like = input if func.__name__ == "dropout" else _of_channels(func, input)
    return _dropped(draws, input, p, training and train, inplace, like)


def _of_channels(func: Any, input: Tensor) -> Tensor:
    """One number for each channel of each sample, as a tensor that extends to `input`."""
    least = {"dropout1d": 3, "dropout3d": 5}.get(func.__name__, 3)  # torch takes fewer as channels without a batch
    if input.dim() < least:
        raise UserError(f"the network calls {func.__name__} on {tuple(input.shape)}, which has no batch of channels")
    return input.flatten(2)[..., 0].view(*input.shape[:2], *[1] * (input.dim() - 2))


def _dropped(draws: NetworkDraws, input: Tensor, p: float, training: bool, inplace: bool, like: Tensor) -> Tensor:
    if not training or p == 0:
        return input
    noise = draws.kept(like, p).to(input.dtype) / (1 - p if p < 1 else 1)
    return input.mul_(noise) if inplace else input * noise


def _alpha_dropout(
    draws: NetworkDraws, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`functional.alpha_dropout`, and `feature_alpha_dropout` of channels, which keep the mean and variance of SELU
    (Klambauer et al. 2017, arXiv:1706.02515)."""
    if not training or p == 0:
        return input
    dropped = -1.7580993408473766
    scale = 1 / math.sqrt((1 - p) * (1 + p * dropped**2)) if p < 1 else 0.0
    kept = draws.kept(_of_channels(func, input) if func is functional.feature_alpha_dropout else input, p)
    return scale * (torch.where(kept, input, dropped) - dropped * p)


def _attention(
    draws: NetworkDraws,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`functional.scaled_dot_product_attention`, whose kernels draw inside: written out where it drops weights."""
    if dropout_p == 0:
        out: Tensor = func(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        return out
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        allowed = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if allowed else scores + attn_mask
    weights = scores.softmax(-1)
    return _dropped(draws, weights, dropout_p, True, False, weights) @ value


@functools.cache
def _body_alone(function: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional without its first question, whether a mode answers it in its place: so the
    mode answers what it calls."""
    inside = {**function.__globals__, "has_torch_function": lambda _: False}
    return types.FunctionType(function.__code__, inside, function.__name__, function.__defaults__)


def _heads(draws: NetworkDraws, func: Any, *args: Any, **kwargs: Any) -> Any:
    with draws:
        return _body_alone(func)(*args, **kwargs)


def _recurrent(draws: NetworkDraws, func: Any, input: Tensor, hx: Any, weights: Any, *rest: Any) -> Any:
    """`torch.lstm`, `gru` and their like, which draw between layers: called layer by layer where they do."""
    if not isinstance(rest[0], bool):  # the form for packed sequences has other arguments
        data, sizes, start, (of_layers, bias, layers, p, training, both) = input, hx, weights, rest
        if training and p:
            raise UserError(
                "the network drops values between recurrent layers of a packed sequence: give it a padded one"
            )
        return func(data, sizes, start, of_layers, bias, layers, p, training, both)
    bias, layers, p, training, both, batch_first = rest
    if not training or not p or layers == 1:
        return func(input, hx, weights, *rest)
    states, size, ends = hx if isinstance(hx, tuple | list) else (hx,), len(weights) // layers, []
    for layer in range(layers):
        if layer:
            input = _dropped(draws, input, p, True, False, input)
        start = tuple(state[layer * (1 + both) : (layer + 1) * (1 + both)] for state in states)
        of_layer = weights[layer * size : (layer + 1) * size]
        first = start if isinstance(hx, tuple | list) else start[0]
        input, *end = func(input, first, of_layer, bias, 1, 0.0, True, both, batch_first)
        ends.append(end)
    return input, *(torch.cat(end) for end in zip(*ends, strict=True))


def _bernoulli(
    draws: NetworkDraws, func: Any, input: Tensor, p: float | None = None, *, generator: None = None
) -> Tensor:
    """`torch.bernoulli`: 1 with the probability that stands in `input`, or p."""
    return (draws.uniform(input) < (input if p is None else p)).to(input.dtype)


def _bernoulli_in_place(
    draws: NetworkDraws, func: Any, input: Tensor, p: Tensor | float = 0.5, *, generator: None = None
) -> Tensor:
    """`Tensor.bernoulli_`, as drop path calls it."""
    like = input if input.is_floating_point() else torch.empty_like(input, dtype=torch.float32)  # flags or counts
    return draws.put(input, (draws.uniform(like) < p).to(input.dtype))


def _uniform_in_place(
    draws: NetworkDraws, func: Any, input: Tensor, start: float = 0.0, to: float = 1.0, *, generator: None = None
) -> Tensor:
    """`Tensor.uniform_`."""
    return draws.put(input, start + (to - start) * draws.uniform(input))


def _normal_in_place(
    draws: NetworkDraws, func: Any, input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: None = None
) -> Tensor:
    """`Tensor.normal_`."""
    return draws.put(input, mean + std * draws.normal(input))


def _normal(
    draws: NetworkDraws,
    func: Any,
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    size: Any = (),
    *,
    generator: None = None,
    **kwargs: Any,
) -> Tensor:
    """`torch.normal`, with numbers and a size, or with tensors."""
    like = mean + std
    return mean + std * draws.normal(like if isinstance(like, Tensor) else torch.empty(size, **kwargs))


def _like(draw: Callable[[NetworkDraws, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The answer to `rand_like` or `randn_like`."""
    return lambda draws, func, input, **kwargs: draw(draws, torch.empty_like(input, **kwargs))


def _of_size(draw: Callable[[NetworkDraws, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The answer to `rand` or `randn`."""

    def answer(draws: NetworkDraws, func: Any, *size: Any, generator: None = None, **kwargs: Any) -> Tensor:
        return draw(draws, torch.empty(*size, **kwargs))

    return answer


def _randint(draws: NetworkDraws, func: Any, *args: Any, generator: None = None, **kwargs: Any) -> Tensor:
    """`torch.randint`, whose first limit may be left out."""
    limits = [number for number in args if isinstance(number, int)]
    limits += [kwargs.pop(name) for name in ("low", "high") if name in kwargs]
    size = kwargs.pop("size", args[-1] if args else ())
    return draws.integers(torch.empty(size, **{"dtype": torch.int64, **kwargs}), *[0, *limits][-2:])


def _randint_like(
    draws: NetworkDraws, func: Any, input: Tensor, low: int = 0, high: int | None = None, **kwargs: Any
) -> Tensor:
    limits = (0, low) if high is None else (low, high)
    return draws.integers(torch.empty_like(input, **kwargs), *limits)


def _randperm(draws: NetworkDraws, func: Any, n: int, *, generator: None = None, **kwargs: Any) -> Tensor:
    """`torch.randperm`: the order of as many draws."""
    order = draws.bits(torch.empty(n, device=kwargs.get("device"))).argsort(stable=True)
    return order.to(kwargs.get("dtype") or torch.int64)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.dropout1d: _dropout,
    functional.dropout2d: _dropout,
    functional.dropout3d: _dropout,
    functional.alpha_dropout: _alpha_dropout,
    functional.feature_alpha_dropout: _alpha_dropout,
    functional.scaled_dot_product_attention: _attention,
    functional.multi_head_attention_forward: _heads,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.Tensor.bernoulli_: _bernoulli_in_place,
    torch.Tensor.uniform_: _uniform_in_place,
    torch.Tensor.normal_: _normal_in_place,
    torch.normal: _normal,
    torch.rand_like: _like(NetworkDraws.uniform),
    torch.randn_like: _like(NetworkDraws.normal),
    torch.rand: _of_size(NetworkDraws.uniform),
    torch.randn: _of_size(NetworkDraws.normal),
    torch.randint: _randint,
    torch.randint_like: _randint_like,
    torch.randperm: _randperm,
}
