"""Run a model value on inputs, inside or outside a loss; its buffers are explicit inputs and outputs.

`compose` makes one model value of several networks and tensors, which is tested, stored and counted like any other.
"""

import contextlib
import copy
import itertools
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench import tensors
from bench.errors import UserError
from bench.params import Entry, Params, Spec
from bench.tensors import NOTHING_FROZEN, Frozen, frozen_layers

Stats = Literal["batch", "frozen"]


class Arithmetic(NamedTuple):
    """The arithmetic of a cell's networks, by its setting `precision`.

    In `bf16`, matrix products and convolutions are in bfloat16, and outputs have the dtype of the weights.
    """

    precision: str = "fp32"

    @property
    def bf16(self) -> bool:
        return self.precision == "bf16"


PLAIN = Arithmetic()


def _unchanged(net: nn.Module) -> nn.Module:
    return net


_gpu_form: Callable[[nn.Module], nn.Module] = _unchanged


class PaddingMask(Protocol):
    """Knows which samples of a batch only fill it up."""

    def left_out(self, net: nn.Module, inputs: Tensor) -> contextlib.AbstractContextManager[None]:
        """Let the network's BatchNorm layers leave those samples of `inputs` out."""


class _Call(nn.Module):
    """Lets `functional_call` reach any method of the network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, method: str, *args: Tensor) -> Any:
        return getattr(self.net, method)(*args)


class _Templates(threading.local):
    """One copy of each module per thread and mode, because `functional_call` swaps the module's tensors in place."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, int, bool, bool, Arithmetic], _Call] = {}

    def get(self, spec: Spec, training: bool, on_gpu: bool, arithmetic: Arithmetic) -> _Call:
        at = (spec.arch, spec.generation, training, on_gpu, arithmetic)
        if at not in self.calls:
            self.calls[at] = _Call(_copied(spec.module)).train(training)
            if training:
                whole = spec.whole or spec
                keep_still(self.calls[at].net, {entry.name for entry in whole.frozen})
                refuse_single_values(self.calls[at])
            if on_gpu:
                _gpu_form(self.calls[at])
            if arithmetic.bf16:
                batchnorm_in_float32(self.calls[at])
        return self.calls[at]


def _copied(net: nn.Module) -> nn.Module:
    """A copy of a network that shares its tensors: a call puts others in their place. So nothing is computed, which a
    recording would take for a part of the step."""
    return copy.deepcopy(net, {id(tensor): tensor for tensor in itertools.chain(net.parameters(), net.buffers())})


def keep_still(net: nn.Module, frozen: Collection[str]) -> None:
    """Put layers of frozen tensors into the mode of evaluation: their running statistics stay as they are."""
    for layer in frozen_layers(net, frozen):
        layer.eval()


def batchnorm_in_float32(net: nn.Module) -> None:
    """Convert inputs of BatchNorm to float32: under `vmap` it requires inputs with the dtype of its weights."""
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(lambda _, args: (args[0].float(),))


class SingleValueError(UserError):
    """Batch that gives BatchNorm one value per channel, which has no variance."""


def refuse_single_values(net: nn.Module) -> None:
    """Let the BatchNorm layers of a network in training raise `SingleValueError` for a batch without a variance."""
    for layer in net.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(_check_values)


def _check_values(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
    if layer.training and args[0].numel() == args[0].shape[1]:
        raise SingleValueError(
            "a batch of one sample gives BatchNorm one value per channel, which has no variance: make the method's "
            "batches larger (its settings about batches), or take a model with GroupNorm"
        )


_templates = _Templates()


def forget_networks() -> None:
    """Forget this thread's copies of networks, which are made anew where they are needed: those of earlier cells."""
    _templates.calls.clear()


def use_on_gpus(form: Callable[[nn.Module], nn.Module]) -> None:
    """Give networks on a GPU another form, which the engine hands down: methods need not know its layers.

    Args:
        form: replaces layers of a network in place and keeps the names of tensors.
    """
    global _gpu_form
    _gpu_form = form


class Forward:
    """The argument `model` of a loss: `model(w, x)`, `model.features(w, x)`, `model.head(w, z)`.

    With `stats="batch"`, BatchNorm uses the statistics of the batch and updates the buffers of `w`; with
    `stats="frozen"`, it uses the buffers and never updates them. `moved(w)` returns the buffers after all calls so far.
    With `padding`, BatchNorm leaves out the samples of a batch that only fill it up.
    """

    def __init__(
        self,
        *,
        frozen: bool = False,
        arithmetic: Arithmetic = PLAIN,
        padding: PaddingMask | None = None,
    ) -> None:
        self._frozen = frozen
        self._arithmetic = arithmetic
        self._padding = padding
        # Keyed by the `id` of the buffers, so that `w.with_weights(...)` updates the buffers of `w`. The original
        # buffers are stored beside the updated ones so that no other tensor can get the same `id`.
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, w: Params, x: Tensor, stats: Stats = "batch") -> Tensor:
        """Logits `[samples, classes]`."""
        return self.call("forward", w, x, stats=stats)

    def features(self, w: Params, x: Tensor, stats: Stats = "batch") -> Tensor:
        """The input of the head, `[samples, width]`."""
        return self.call("features", w, x, stats=stats)

    def head(self, w: Params, z: Tensor, stats: Stats = "batch") -> Tensor:
        """Logits `[samples, classes]` from features `z [samples, width]`; `w` may be the head alone."""
        return self.call("head", w, z, stats=stats)

    def call(self, method: str, w: Params, *args: Tensor, stats: Stats = "batch") -> Tensor:
        """Call the network's method of that name on `args` with the tensors of `w`.

        Raises:
            TypeError: `w` is no model value.
            ValueError: the whole network is called, and `w` is a part of it.
        """
        if not isinstance(w, Params):
            raise TypeError(f"Forward.{method} of a {type(w).__name__}")
        if method == "forward" and (layers := w.spec.partial):
            raise ValueError(f"a part of a model ({layers}) is called as a whole: `join(body, head)` makes one")
        training = stats == "batch" and not self._frozen
        current = w.with_buffers(self.moved(w)).tensors()
        if training:
            for entry in w.spec.buffers:
                current[entry.name] = current[entry.name].clone()
        # A part has the frozen tensors of the whole: which of them the method reads, the module knows.
        device = w.weights.device
        present = {**w.spec.held.on(device), **w.spec.constants(device, w.weights.dtype), **current}
        named = {f"net.{name}": tensor for name, tensor in present.items()}
        template = _templates.get(w.spec, training, tensors.on_gpu(w.weights), self._arithmetic)
        out: Tensor
        with contextlib.ExitStack() as contexts:
            if self._arithmetic.bf16 and not w.weights.is_meta:  # PyTorch has no autocast for tensors without numbers
                # No cache: it would keep a traced tensor after the end of its trace.
                contexts.enter_context(torch.autocast(w.weights.device.type, torch.bfloat16, cache_enabled=False))
            if self._padding is not None:
                contexts.enter_context(self._padding.left_out(template, args[0]))
            out = functional_call(template, named, (method, *args), tie_weights=False)
        out = out.to(w.weights.dtype) if self._arithmetic.bf16 else out
        if training and w.spec.buffers:
            # `functional_call` leaves there what the network assigned, in place or not.
            after = [named[f"net.{entry.name}"] for entry in w.spec.buffers]
            moved = torch.cat([tensor.reshape(-1) for tensor in after]).to(w.buffers.dtype)
            self._moved[id(w.buffers)] = (w.buffers, moved)
        return out

    def moved(self, w: Params) -> Tensor:
        """The buffers of `w` after the calls so far, `[b]`."""
        return self._moved.get(id(w.buffers), (w.buffers, w.buffers))[1]


Predictor = Callable[[Forward, dict[str, Any], Tensor], Tensor]
"""Computes logits `[samples, classes]` from `model`, the parts by name, and inputs `[samples, ...]`."""

Kind = Spec | tuple[int, ...] | int | float  # describes a part: a model value's spec, a tensor's shape, or a number


class Composed(nn.Module):
    """The module of a composed model value; it calls the function on its parts.

    The parts' networks are submodules under the parts' names, and tensors are parameters, so code that searches for
    layers of a type finds them.
    """

    def __init__(self, function: Predictor, kinds: Mapping[str, Kind]) -> None:
        super().__init__()
        self.function = function
        self.kinds = dict(kinds)
        for name, kind in kinds.items():
            if isinstance(kind, Spec):  # a copy, because two parts of one architecture hold different tensors
                self.register_module(name, copy.deepcopy(kind.module))
            elif isinstance(kind, tuple):
                self.register_parameter(name, nn.Parameter(torch.empty(kind, device="meta")))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[samples, classes]`."""
        device = x.device.type
        bf16 = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        model = Forward(frozen=not self.training, arithmetic=Arithmetic("bf16" if bf16 else "fp32"))
        values = {name: self._value(name, kind) for name, kind in self.kinds.items()}
        logits = self.function(model, values, x)
        if self.training:
            for name, kind in self.kinds.items():
                if isinstance(kind, Spec) and kind.buffers:
                    moved = Params(values[name].weights, model.moved(values[name]), kind).tensors()
                    for entry in kind.buffers:
                        self.get_buffer(f"{name}.{entry.name}").copy_(moved[entry.name])
        return logits

    def _value(self, name: str, kind: Kind) -> Any:
        if not isinstance(kind, Spec):
            return getattr(self, name) if isinstance(kind, tuple) else kind
        layers = getattr(self, name)
        tensors = [attrgetter(entry.name)(layers).reshape(-1) for entry in kind.params + kind.buffers]
        n, none = len(kind.params), next(self.parameters()).new_empty(0)  # a body may be empty, or frozen
        return Params(torch.cat([none, *tensors[:n]]), torch.cat([none, *tensors[n:]]), kind)


def compose(function: Predictor, **parts: Params | Tensor | int | float) -> Params:
    """Combine several parts into one model value whose logits are `function(model, parts, x)`.

    The function is written like a loss: `model(parts["w"], x)` runs a part, and the rules for losses apply. The tensors
    of the value are those of the parts in their order, named `part.tensor`, so `value.part("name")` returns one part.

    Args:
        function: a function defined at the top level of a module.
        parts: model values; tensors with the dtype of the weights, which may differ between clients; or numbers, which
            are constants of the computation.

    Returns:
        Weights `[d]`, the parts' weights and tensors one after another, and buffers `[b]`, those of the parts.

    Raises:
        ValueError: the function is not found under its name, no part is a model value, or a tensor has another dtype.
    """
    models = [part for part in parts.values() if isinstance(part, Params)]
    if not models:
        raise ValueError(f"{function.__qualname__} has no network among its parts: give at least one model value")
    kinds: dict[str, Kind] = {}
    for name, part in parts.items():
        if isinstance(part, Tensor) and part.dtype != models[0].weights.dtype:
            raise ValueError(f"{name!r} has type {part.dtype}, the weights {models[0].weights.dtype}: convert it")
        kinds[name] = part.spec if isinstance(part, Params) else tuple(part.shape) if isinstance(part, Tensor) else part
    operands = [part for part in parts.values() if isinstance(part, Params | Tensor)]
    tensors = [part.weights if isinstance(part, Params) else part.reshape(-1) for part in operands]
    return Params(torch.cat(tensors), torch.cat([m.buffers for m in models]), composed_spec(function, kinds))


def composed_spec(function: Predictor, kinds: Mapping[str, Kind]) -> Spec:
    """The spec of a composed model value; its `arch` names the function and the parts.

    Raises:
        ValueError: the function is not found under its name.
    """
    address = reference(function)
    arch = f"{address}({', '.join(f'{name}={_named(kind)}' for name, kind in kinds.items())})"
    params: list[Entry] = []
    buffers: list[Entry] = []
    frozen: list[Entry] = []
    for name, kind in kinds.items():
        if isinstance(kind, Spec):
            params += [Entry(f"{name}.{e.name}", e.shape) for e in kind.params]
            buffers += [Entry(f"{name}.{e.name}", e.shape) for e in kind.buffers]
            frozen += [Entry(f"{name}.{e.name}", e.shape) for e in kind.frozen]
        elif isinstance(kind, tuple):
            params.append(Entry(name, kind))
    parts = {name: kind.held for name, kind in kinds.items() if isinstance(kind, Spec) and kind.frozen}
    held = Frozen({}, parts) if parts else NOTHING_FROZEN
    module = Composed(function, kinds)
    generation = max(kind.generation for kind in kinds.values() if isinstance(kind, Spec))
    return Spec(arch, tuple(params), tuple(buffers), module, frozen=tuple(frozen), held=held, generation=generation)


def reference(function: Predictor) -> str:
    """The function's address `module:name`, from which `resolve` finds it.

    Raises:
        ValueError: the function is a lambda, a method, or defined inside another function.
    """
    address = f"{function.__module__}:{function.__qualname__}"
    if getattr(sys.modules.get(function.__module__), function.__qualname__, None) is not function:
        raise ValueError(f"{address} is no function of a module's top level: a checkpoint could not name it")
    return address


def resolve(address: str) -> Predictor:
    """The function at an address from `reference`; its module must be loaded already (it is loaded with the method).

    Raises:
        ValueError: there is no such function.
    """
    module, _, name = address.partition(":")
    function = getattr(sys.modules.get(module), name, None)
    if not callable(function):
        raise ValueError(f"there is no function {address}, which a checkpoint's model rests on")
    return function  # type: ignore[no-any-return]


def _named(kind: Kind) -> str:
    if not isinstance(kind, Spec):
        return repr(kind)
    return kind.arch if kind.whole is None else f"{kind.arch}[{', '.join(e.name for e in kind.entries)}]"
