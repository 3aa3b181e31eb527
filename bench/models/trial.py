"""Checks of a model before anything runs, with messages for its author."""

import contextlib
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from bench.data import TokenShape
from bench.errors import UserError, in_words
from bench.models.network import Cut
from bench.network_draws import NetworkDraws
from bench.tensors import constants, statistics

_SAMPLES = 2
_CHECKPOINTS = (
    "it computes activations a second time (torch.utils.checkpoint) in the backward pass, where a client's weights are "
    "no longer in the network: switch gradient checkpointing off"
)
_STATISTICS = {"running_mean": 0.0, "running_var": 1.0}


def check(name: str, net: nn.Module) -> None:
    """Check the rules for models that can be seen without running one.

    Raises:
        UserError: the model has no `features` or `head`, or tensors or layers that cannot be trained here.
    """
    if not (callable(getattr(net, "features", None)) and callable(getattr(net, "head", None))):
        raise UserError(
            f"model {name!r} needs `features` and `head`, with forward(x) = head(features(x)): write them, or return "
            "bench.with_head(net, 'NAME OF ITS LAST LAYER')"
        )
    if not any(path.startswith("head.") for path, _ in net.named_parameters()):
        raise UserError(f"model {name!r} has no parameters named `head.*`, so it cannot be cut into body and head.")
    for problem in _problems(net):
        raise UserError(f"model {name!r} {problem}")


def _problems(net: nn.Module) -> Iterator[str]:
    owners = Counter(id(p) for layer in net.modules() for p in layer._parameters.values() if p is not None)
    for path, layer in net.named_modules():
        for short, p in layer._parameters.items():
            name = f"{path}.{short}".lstrip(".")
            if p is not None and is_lazy(p):
                yield f"has {name!r} of unknown shape, in a lazy layer: give the layer its sizes"
            if p is not None and owners[id(p)] > 1:
                yield f"has {name!r} under another name, too: two layers cannot share a tensor here. Give each its own"
        for attribute, value in vars(layer).items():
            if isinstance(value, Tensor):
                yield (
                    f"has the tensor {f'{path}.{attribute}'.lstrip('.')!r} as a plain attribute, which is not moved to "
                    f"the model's device: self.register_buffer({attribute!r}, ..., persistent=False)"
                )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            yield f"shortens rows of its parameter {f'{path}.weight'!r} wherever it reads them: leave max_norm out"


class Watched(NamedTuple):
    """Uses of a model's layers and samples that training was watched to make.

    Attributes:
        called: names of the layers that it calls.
        moving: names of those whose statistics it moves.
        draws: whether it draws, such as a mask of dropout.
        by_sample: whether a sample has the same draws and features in a larger batch, so that a batch may be padded.
        side_by_side: whether several clients' models are computed at once.
    """

    called: frozenset[str]
    moving: frozenset[str]
    draws: bool
    by_sample: bool
    side_by_side: bool


def try_out(name: str, net: nn.Module, shape: tuple[int, ...], classes: int) -> Watched:
    """Run a model on two samples, in evaluation and in training, with weights drawn here in place of its own.

    Raises:
        UserError: it fails, its logits have another shape, forward(x) is not head(features(x)), it draws random
            numbers that `bench.network_draws` cannot give it, or it changes its parameters or constants.
    """
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            nn.init.normal_(p, std=0.1, generator=rng)
    for path, statistic in statistics(net):
        if path.rpartition(".")[2] in _STATISTICS:
            statistic.fill_(_STATISTICS[path.rpartition(".")[2]])
    given = {path: p.detach().clone() for path, p in net.named_parameters()}
    if isinstance(shape, TokenShape):
        x = torch.randint(shape.vocabulary, (_SAMPLES, shape.length), generator=rng)
    else:
        x = torch.randn(_SAMPLES, *shape, generator=rng)
    try:
        with torch.no_grad():
            _compare(name, net.eval(), x, classes)
            called, moving, draws = _watch(name, net.train(), x)
            by_sample = _by_sample(net, x, draws)
    except UserError:
        raise
    except Exception as error:  # a user's code may raise anything
        file = getattr(sys.modules[type(net).__module__], "__file__", None)
        words = " ".join(in_words(error, file).split())
        raise UserError(f"model {name!r} does not take samples of shape {shape}: {words}") from error
    left = dict(net.named_parameters())
    for path in given | left:
        if path not in given or path not in left or not torch.equal(given[path], left[path]):
            raise UserError(
                f"model {name!r} changes its parameter {path!r} in its forward pass, which may be the server's or "
                "another client's: compute a changed copy there"
            )
    return Watched(called, moving, bool(draws.shapes), by_sample, goes_side_by_side(net, x))


def goes_side_by_side(net: nn.Module, x: Tensor) -> bool:
    """Whether gradients and outputs of several clients' models are computed at once: `vmap` knows all operations.

    Args:
        net: the model.
        x: two samples.
    """
    params = {name: torch.stack([p.detach()] * 2) for name, p in net.named_parameters()}
    moving = {name: torch.stack([b] * 2) for name, b in statistics(net)}

    def logits(params: dict[str, Tensor], moving: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(net, {**params, **{name: b.clone() for name, b in moving.items()}}, (x,))
        return out

    def loss(params: dict[str, Tensor], moving: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        with NetworkDraws(key):
            return logits(params, moving, x).square().sum()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it warns where it goes through the clients one by one
            net.train()
            vmap(grad(loss))(params, moving, torch.stack([x, x]), torch.arange(2))
            net.eval()
            with torch.no_grad():  # where torch takes other operations, as in a GRU
                vmap(logits)(params, moving, torch.stack([x, x]))
    except Exception:  # any operation may be unknown to it, in its own way
        return False
    return True


def _compare(name: str, net: nn.Module, x: Tensor, classes: int) -> None:
    """Check that the whole model and its parts give the same logits."""
    parts: Any = net
    with _refusing_draws(name, "in evaluation"):
        whole = net.uncut(x) if isinstance(net, Cut) else net(x)
    if whole.shape != (_SAMPLES, classes):
        raise UserError(
            f"model {name!r} makes {tuple(whole.shape)} of {_SAMPLES} samples; logits are ({_SAMPLES}, {classes})"
        )
    try:
        agree = torch.allclose(whole, parts.head(parts.features(x)), rtol=1e-4, atol=1e-5)
    except Exception:  # layers after the head may not take what comes before it
        if not isinstance(net, Cut):
            raise
        agree = False
    if not agree and isinstance(net, Cut):
        raise UserError(
            f"model {name!r} is cut at {net.place!r}, and its logits are not what that layer computes: give "
            "bench.with_head the last layer, which the network calls once, and leave out what comes after it"
        )
    if not agree:
        raise UserError(f"model {name!r}: forward(x) is not head(features(x)), on which methods rely; make them agree")


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that move torch's generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        out = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):
            self.names.append(func.overloadpacket.__name__)
        return out


@contextlib.contextmanager
def _refusing_draws(name: str, when: str) -> Iterator[None]:
    """Refuse a network that moves a generator of the process in the block."""
    with torch.random.fork_rng(devices=[]), _Drawing() as operations:
        before = _generators()
        yield
        after = _generators()
    if operations.names or before != after:
        by = operations.names[0] if operations.names else "numpy or Python"
        raise UserError(
            f"model {name!r} draws random numbers by {by} {when}, and they would depend on which clients are computed "
            "together: draw by dropout, torch.rand, randn or bernoulli where self.training is true, as "
            "`F.dropout(x, p, training=self.training)` does"
        )


def _generators() -> tuple[Any, ...]:
    """States of the generators of Python and numpy."""
    return random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]


def _watch(name: str, net: nn.Module, x: Tensor) -> tuple[frozenset[str], frozenset[str], NetworkDraws]:
    """Check that training leaves the generators of the process and the constants as they are.

    Returns:
        The layers that it calls, those whose statistics it moves, and what it drew.
    """
    before = {path: value.clone() for path, value in net.named_buffers()}
    called: set[str] = set()
    hooks = [layer.register_forward_hook(lambda *_, path=path: called.add(path)) for path, layer in net.named_modules()]
    draws, unhooked = NetworkDraws(torch.zeros((), dtype=torch.int64)), torch.autograd.graph.disable_saved_tensors_hooks
    with _refusing_draws(name, "in training"), draws, unhooked(_CHECKPOINTS), torch.enable_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    for path, value in constants(net):
        if not torch.equal(value, before[path]):
            raise UserError(
                f"model {name!r} changes its buffer {path!r} in training; only persistent buffers of floating numbers "
                "can be statistics that travel with the model"
            )
    moved = {path.rpartition(".")[0] for path, value in statistics(net) if not torch.equal(value, before[path])}
    return frozenset(called), frozenset(moved), draws


def _by_sample(net: nn.Module, x: Tensor, draws: NetworkDraws) -> bool:
    """Whether samples have the same draws and outputs in a batch with one more; BatchNorm, which knows padding, is
    still."""
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
    outputs = []
    for batch in (x, torch.cat([x, x[:1]])):
        with NetworkDraws(torch.zeros((), dtype=torch.int64)) as stream:
            outputs.append(net(batch)[:_SAMPLES])
    extended = len(draws.shapes) == len(stream.shapes) and all(map(_extends, draws.shapes, stream.shapes))
    return extended and torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5, equal_nan=True)


def _extends(shape: torch.Size, of_more: torch.Size) -> bool:
    """Whether a draw for one sample more begins with the draw of that shape."""
    return shape == of_more or (shape[1:] == of_more[1:] and shape[0] * (_SAMPLES + 1) == of_more[0] * _SAMPLES)
