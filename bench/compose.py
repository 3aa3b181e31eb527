"""Predictors built from several networks and tensors: one model value, tested, stored and counted like any other."""

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.frozen_tensors import NOTHING_FROZEN, Frozen
from bench.model_call import Arithmetic, Forward
from bench.params import Entry, Params, Spec

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
        model = Forward(frozen=not self.training, arithmetic=Arithmetic(bf16))
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
        tensors = [_tensor(layers, entry).reshape(-1) for entry in kind.params + kind.buffers]
        n, none = len(kind.params), next(self.parameters()).new_empty(0)  # a body may be empty, or frozen
        return Params(torch.cat([none, *tensors[:n]]), torch.cat([none, *tensors[n:]]), kind)


def _tensor(layers: nn.Module, entry: Entry) -> Tensor:
    parent, _, name = entry.name.rpartition(".")
    tensor: Tensor = getattr(layers.get_submodule(parent), name)
    return tensor


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
