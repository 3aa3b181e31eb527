"""Model values: all trainable parameters in one flat vector, all buffers in another, and a spec that names both.

With this layout, a cohort of clients is a `[clients, d]` matrix, an average is one product, and a spectrum one FFT.
"""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

Prefixes = tuple[str, ...]

NORMALISATION: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, of any dimension
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
"""Types of normalisation layers, for `Spec.of_type`."""


@dataclass(frozen=True)
class Entry:
    """One named tensor of a module."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)

    def under(self, prefixes: Prefixes) -> bool:
        """Whether the name is one of the prefixes or below one; the prefix `""` covers everything."""
        return any(p == "" or self.name == p or self.name.startswith(p + ".") for p in prefixes)


@dataclass(frozen=True)
class Spec:
    """The layout of a model value. Model values with equal specs may be averaged and trained in one cohort.

    Attributes:
        arch: name of the architecture, e.g. `cnn(3x32x32->10)`.
        params, buffers: the named tensors, in the order of the flat vectors.
        module: the module on the meta device that defines the computation; its own tensors are never used.
        whole: the spec of the whole model if this one is a part of it, else None.
    """

    arch: str
    params: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    module: nn.Module = field(compare=False, repr=False)
    whole: "Spec | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, arch: str, module: nn.Module) -> "Spec":
        """The spec of a module."""
        return cls(
            arch,
            tuple(Entry(name, tuple(p.shape)) for name, p in module.named_parameters()),
            tuple(Entry(name, tuple(b.shape)) for name, b in module.named_buffers()),
            module,
        )

    def __hash__(self) -> int:
        return hash((self.arch, len(self.params), len(self.buffers)))  # short: computed for every client in every round

    @cached_property
    def d(self) -> int:
        """Number of trainable scalars."""
        return sum(e.size for e in self.params)

    @cached_property
    def b(self) -> int:
        """Number of scalars in buffers."""
        return sum(e.size for e in self.buffers)

    def slices(self, prefixes: Prefixes) -> list[slice]:
        """The slices of the flat weights that are under the prefixes; adjacent slices are merged.

        Raises:
            ValueError: no tensor is under one of the prefixes.
        """
        _check(self, prefixes)
        return _runs(self.params, [e.under(prefixes) for e in self.params])

    def part(self, prefixes: Prefixes) -> "Spec":
        """The spec of the tensors under the prefixes.

        Raises:
            ValueError: no tensor is under one of the prefixes.
        """
        return _kept(self, prefixes, True)

    def without(self, prefixes: Prefixes) -> "Spec":
        """The spec of the tensors that are not under the prefixes.

        Raises:
            ValueError: no tensor is under one of the prefixes.
        """
        return _kept(self, prefixes, False)

    def of_type(self, *kinds: type[nn.Module]) -> Prefixes:
        """Names of all layers of these types that hold tensors, as prefixes for `part` and `without`."""
        return _of_type(self.whole or self, kinds)


@functools.cache  # called for every client in every round
def _of_type(spec: Spec, kinds: tuple[type[nn.Module], ...]) -> Prefixes:
    layers = (name for name, layer in spec.module.named_modules() if isinstance(layer, kinds))
    return tuple(name for name in layers if any(e.under((name,)) for e in spec.params + spec.buffers))


@functools.cache  # called for every client in every round
def _kept(spec: Spec, prefixes: Prefixes, inside: bool) -> Spec:
    _check(spec, prefixes)
    return replace(
        spec,
        params=tuple(e for e in spec.params if e.under(prefixes) == inside),
        buffers=tuple(e for e in spec.buffers if e.under(prefixes) == inside),
        whole=spec.whole or spec,
    )


def _check(spec: Spec, prefixes: Prefixes) -> None:
    whole = spec.whole or spec  # if `spec` is a part, a prefix may name tensors outside it
    for prefix in prefixes:
        if not any(e.under((prefix,)) for e in whole.params + whole.buffers):
            names = ", ".join(e.name for e in whole.params)
            raise ValueError(f"no tensor of {spec.arch} is named {prefix!r} or below it; there are {names}")


@dataclass(frozen=True, eq=False)
class Params:
    """A model value: `weights` of shape `[d]`, `buffers` of shape `[b]` (BatchNorm statistics), and their spec."""

    weights: Tensor
    buffers: Tensor
    spec: Spec

    def to(self, device: torch.device) -> "Params":
        """Copy the values to a device; those that are there already are not copied."""
        return Params(self.weights.to(device), self.buffers.to(device), self.spec)

    def with_weights(self, weights: Tensor) -> "Params":
        """A model value of other weights `[d]` and these buffers."""
        return Params(weights, self.buffers, self.spec)

    def with_buffers(self, buffers: Tensor) -> "Params":
        """A model value of these weights and other buffers `[b]`."""
        return Params(self.weights, buffers, self.spec)

    def part(self, *prefixes: str) -> "Params":
        """The part of the model under the prefixes, e.g. `w.part("head")`.

        Raises:
            ValueError: no tensor is under one of the prefixes.
        """
        return self._keep(prefixes, True)

    def without(self, *prefixes: str) -> "Params":
        """The model without the tensors under the prefixes, e.g. `w.without("head")` is the body.

        Raises:
            ValueError: no tensor is under one of the prefixes.
        """
        return self._keep(prefixes, False)

    def _keep(self, prefixes: Prefixes, inside: bool) -> "Params":
        return Params(
            _take(self.weights, self.spec.params, [e.under(prefixes) == inside for e in self.spec.params]),
            _take(self.buffers, self.spec.buffers, [e.under(prefixes) == inside for e in self.spec.buffers]),
            self.spec.part(prefixes) if inside else self.spec.without(prefixes),
        )

    def tensors(self) -> dict[str, Tensor]:
        """All named tensors, as views of the flat vectors."""
        return {**_split(self.weights, self.spec.params), **_split(self.buffers, self.spec.buffers)}


def join(*parts: Params) -> Params:
    """Put the parts of one model together again: weights `[d]` and buffers `[b]` of the whole, in its order.

    Raises:
        ValueError: the parts do not make up the whole exactly once.
    """
    whole = parts[0].spec.whole or parts[0].spec
    names = sorted(e.name for p in parts for e in p.spec.params + p.spec.buffers)
    if names != sorted(e.name for e in whole.params + whole.buffers):
        raise ValueError(f"these parts do not make up {whole.arch}: {', '.join(names)}")
    present = [p for p in parts if p.spec.params or p.spec.buffers]
    if len(present) == 1:
        return Params(present[0].weights, present[0].buffers, whole)
    weights: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for p in present:
        weights |= _split(p.weights, p.spec.params, flat=True)
        buffers |= _split(p.buffers, p.spec.buffers, flat=True)
    empty = parts[0].buffers[:0]
    return Params(
        torch.cat([weights[e.name] for e in whole.params]),
        torch.cat([empty, *(buffers[e.name] for e in whole.buffers)]),
        whole,
    )


def _split(flat_vector: Tensor, entries: tuple[Entry, ...], *, flat: bool = False) -> dict[str, Tensor]:
    pieces = torch.split(flat_vector, [e.size for e in entries]) if entries else ()
    return {e.name: t if flat else t.view(e.shape) for e, t in zip(entries, pieces, strict=True)}


def _take(vector: Tensor, entries: tuple[Entry, ...], keep: Iterable[bool]) -> Tensor:
    runs = _runs(entries, list(keep))
    if len(runs) == 1:
        return vector[runs[0]]
    return torch.cat([vector[:0], *(vector[r] for r in runs)])


def _runs(entries: tuple[Entry, ...], keep: list[bool]) -> list[slice]:
    runs: list[slice] = []
    start = 0
    for entry, kept in zip(entries, keep, strict=True):
        stop = start + entry.size
        if kept and runs and runs[-1].stop == start:
            runs[-1] = slice(runs[-1].start, stop)
        elif kept:
            runs.append(slice(start, stop))
        start = stop
    return runs
