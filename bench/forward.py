"""Running a model value on inputs, inside a loss or outside, with the buffers as inputs and outputs."""

import copy
import threading
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.params import Params, Spec

Stats = Literal["batch", "frozen"]


class _Call(nn.Module):
    """Lets `functional_call` reach any method of the network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, method: str, *args: Tensor) -> Any:
        return getattr(self.net, method)(*args)


class _Templates(threading.local):
    """One copy of each module per thread and mode: `functional_call` swaps tensors in place."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, bool], _Call] = {}

    def get(self, spec: Spec, training: bool) -> _Call:
        at = (spec.arch, training)
        if at not in self.known:
            self.known[at] = _Call(copy.deepcopy(spec.module)).train(training)
        return self.known[at]


_templates = _Templates()


class Forward:
    """What a loss calls `model`: `model(w, x)`, `model.features(w, x)`, `model.head(w, z)`.

    With `stats="batch"` BatchNorm uses the statistics of the batch and moves the buffers of `w`; with
    `stats="frozen"` it uses the buffers and never moves them. `moved(w)` gives the buffers after all calls so far.
    """

    def __init__(self, *, frozen: bool = False) -> None:
        self._frozen = frozen
        # Keyed by the identity of the buffers, so that `w.with_weights(...)` moves the buffers of `w`; the buffers are
        # kept beside the moved ones so that no other tensor can take over their identity.
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, w: Params, x: Tensor, stats: Stats = "batch") -> Tensor:
        """Logits `[samples, classes]`."""
        return self.call("forward", w, x, stats=stats)

    def features(self, w: Params, x: Tensor, stats: Stats = "batch") -> Tensor:
        """The input of the head, `[samples, width]`."""
        return self.call("features", w, x, stats=stats)

    def head(self, w: Params, z: Tensor, stats: Stats = "batch") -> Tensor:
        """Logits from features; `w` may be the head alone."""
        return self.call("head", w, z, stats=stats)

    def call(self, method: str, w: Params, *args: Tensor, stats: Stats = "batch") -> Tensor:
        """Any method of the network."""
        training = stats == "batch" and not self._frozen
        current = w.with_buffers(self.moved(w)).tensors()
        if training:
            for entry in w.spec.buffers:
                current[entry.name] = current[entry.name].clone()
        named = {f"net.{name}": tensor for name, tensor in current.items()}
        template = _templates.get(w.spec, training)
        out: Tensor = functional_call(template, named, (method, *args), tie_weights=False)
        if training and w.spec.buffers:
            moved = torch.cat([current[e.name].reshape(-1) for e in w.spec.buffers])
            self._moved[id(w.buffers)] = (w.buffers, moved)
        return out

    def moved(self, w: Params) -> Tensor:
        """The buffers of `w` after the calls so far, `[b]`."""
        return self._moved.get(id(w.buffers), (w.buffers, w.buffers))[1]
