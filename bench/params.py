"""Model values: all trainable parameters in one flat vector, all buffers in another, and a spec that names both.

With this layout, a cohort of clients is a `[clients, d]` matrix, an average is one product, and a spectrum one FFT.
Frozen tensors are in neither vector: the spec holds them, once for all model values.

State and messages nest model values, tensors and plain values in dictionaries, lists and tuples: `parts`, `leaves`,
`map_tensors` and `tensors_of` go through them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bench.network_draws import drops
from bench.plugin import Registry
from bench.tensors import NOTHING_FROZEN, Frozen, constants, frozen_layers, precise, statistics

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
        arch: name of the architecture, e.g. `cnn(3x32x32->10)`; with frozen tensors it ends with their digest.
        params, buffers: the named tensors, in the order of the flat vectors.
        module: the module on the meta device that defines the computation; of its own tensors only the constants are
            used.
        whole: the spec of the whole model if this one is a part of it, else None.
        frozen: the named tensors that are in no vector, since no training changes them.
        held: the values of all frozen tensors of the whole.
        generation: `Registry.generation` when the architecture was built in this process. A model or method that a
            notebook defines anew under its old name has other specs, and so nothing recorded of the earlier one.
    """

    arch: str
    params: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    module: nn.Module = field(compare=False, repr=False)
    whole: "Spec | None" = field(default=None, compare=False, repr=False)
    frozen: tuple[Entry, ...] = ()
    held: Frozen = field(default=NOTHING_FROZEN, compare=False, repr=False)
    generation: int = field(default_factory=lambda: Registry.generation, repr=False)

    @classmethod
    def of(cls, arch: str, module: nn.Module, frozen: Mapping[str, Tensor] | None = None) -> "Spec":
        """The spec of a module, of which the tensors named in `frozen` have these values in all model values."""
        held = Frozen.of(frozen) if frozen else NOTHING_FROZEN
        params, buffers = (
            [Entry(name, tuple(tensor.shape)) for name, tensor in named]
            for named in (module.named_parameters(), statistics(module))
        )
        still = frozen or {}
        return cls(
            f"{arch} with frozen tensors {held.digest}" if frozen else arch,
            tuple(e for e in params if e.name not in still),
            tuple(e for e in buffers if e.name not in still),
            module,
            frozen=tuple(e for e in params + buffers if e.name in still),
            held=held,
        )

    def __hash__(self) -> int:
        return hash((self.arch, len(self.params), len(self.buffers)))  # short: computed for every client in every round

    def __deepcopy__(self, memo: Any) -> "Spec":
        return self  # nothing of it changes, and frozen tensors are held once

    def __reduce__(self) -> Any:
        kept = [f.name for f in fields(self) if f.name != "generation"]  # another process has generations of its own
        return Spec, tuple(getattr(self, name) for name in kept)  # without what is worked out from them

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All named tensors: parameters, buffers, and those that are frozen."""
        return self.params + self.buffers + self.frozen

    @cached_property
    def moving_layers(self) -> tuple[nn.Module, ...]:
        """The layers of the whole that training may change: all but `frozen_layers`."""
        whole = self.whole or self
        still = {id(layer) for layer in frozen_layers(self.module, {e.name for e in whole.frozen})}
        return tuple(layer for layer in self.module.modules() if id(layer) not in still)

    @property
    def partial(self) -> str:
        """The layers that a part of a model has, for messages; empty if it has all that its whole trains."""
        whole = self.whole or self
        if len(self.params) + len(self.buffers) == len(whole.params) + len(whole.buffers):
            return ""
        return ", ".join(dict.fromkeys(e.name.rpartition(".")[0] for e in self.params + self.buffers)) or "no layer"

    @cached_property
    def draws(self) -> bool:
        """Whether a layer draws in training, such as a mask of dropout (`bench.network_draws`)."""
        return any(getattr(layer, "draws_in_training", False) or drops(layer) for layer in self.module.modules())

    @cached_property
    def d(self) -> int:
        """Number of trainable scalars."""
        return sum(e.size for e in self.params)

    @cached_property
    def b(self) -> int:
        """Number of scalars in buffers."""
        return sum(e.size for e in self.buffers)

    def constants(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The module's constants by name, on a device, real and complex ones in the precision of `dtype`."""
        if (device, dtype) not in self._constants:
            with torch.inference_mode(False):  # a training may read them later
                placed = {name: b.to(device, precise(b.dtype, dtype)) for name, b in constants(self.module)}
            self._constants[device, dtype] = placed
        return self._constants[device, dtype]

    @cached_property
    def _constants(self) -> dict[tuple[torch.device, torch.dtype], dict[str, Tensor]]:
        return {}

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
        """Names of all layers of these types that hold tensors which are not frozen, as prefixes for `part`."""
        whole = self.whole or self
        if kinds not in whole._known:
            layers = (name for name, layer in whole.module.named_modules() if isinstance(layer, kinds))
            moving = whole.params + whole.buffers
            whole._known[kinds] = tuple(name for name in layers if any(e.under((name,)) for e in moving))
        names: Prefixes = whole._known[kinds]
        return names

    def has_layer(self, *kinds: type[nn.Module]) -> bool:
        """Whether the whole has a layer of one of these types, frozen or not."""
        if ("layer", kinds) not in self._known:
            self._known["layer", kinds] = any(isinstance(layer, kinds) for layer in self.module.modules())
        return bool(self._known["layer", kinds])

    @cached_property
    def _known(self) -> dict[Any, Any]:
        """Answers to questions that come for every client in every round."""
        return {}

    def named(self, *names: str) -> Prefixes:
        """Full names of all tensors of the model whose last part is one of `names`, as prefixes for `part` and `only`.

        Raises:
            ValueError: no tensor has such a name.
        """
        whole = self.whole or self
        if ("named", names) not in whole._known:
            moving = (e.name for e in whole.params + whole.buffers)
            whole._known["named", names] = tuple(name for name in moving if name.rpartition(".")[2] in names)
        tensors: Prefixes = whole._known["named", names]
        if not tensors:
            last = ", ".join(dict.fromkeys(e.name.rpartition(".")[2] for e in whole.params))
            raise ValueError(f"no tensor of {self.arch} is called {' or '.join(map(repr, names))}; there are {last}")
        return tensors


def _kept(spec: Spec, prefixes: Prefixes, inside: bool) -> Spec:
    if (prefixes, inside) not in spec._known:
        _check(spec, prefixes)
        spec._known[prefixes, inside] = replace(
            spec,
            params=tuple(e for e in spec.params if e.under(prefixes) == inside),
            buffers=tuple(e for e in spec.buffers if e.under(prefixes) == inside),
            frozen=tuple(e for e in spec.frozen if e.under(prefixes) == inside),
            whole=spec.whole or spec,
        )
    part: Spec = spec._known[prefixes, inside]
    return part


def _check(spec: Spec, prefixes: Prefixes) -> None:
    whole = spec.whole or spec  # if `spec` is a part, a prefix may name tensors outside it
    for prefix in prefixes:
        if not any(e.under((prefix,)) for e in whole.entries):
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

    def with_pieces(self, pieces: Iterable[Tensor]) -> "Params":
        """A model value of these buffers and of weights `[d]` in consecutive pieces, each of whole tensors.

        The pieces are concatenated only if the flat weights are asked for. So the gradient with respect to one piece
        does not pass through the others.
        """
        rest, named = list(self.spec.params), []
        for piece in pieces:
            entries: list[Entry] = []
            while rest and sum(e.size for e in entries) < piece.numel():
                entries.append(rest.pop(0))
            named.append((tuple(entries), piece))
        named.append((tuple(rest), self.buffers[:0]))  # tensors without numbers
        return _in_pieces(named, self.buffers, self.spec)

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
        """All named tensors: views of the flat vectors, and the frozen tensors, which are not to be changed."""
        moving = {**self._parameters(), **_split(self.buffers, self.spec.buffers)}
        if not self.spec.frozen:
            return moving
        held = self.spec.held.on(self.weights.device)
        return moving | {e.name: held[e.name] for e in self.spec.frozen}

    def _parameters(self, *, flat: bool = False) -> dict[str, Tensor]:
        return _split(self.weights, self.spec.params, flat=flat)

    def _of(self, spec: Spec) -> "Params":
        return Params(self.weights, self.buffers, spec)


Piece = tuple[tuple[Entry, ...], Tensor]


class _InPieces(Params):
    """A model value whose flat weights are put together when they are asked for (`Params.with_pieces`)."""

    pieces: Sequence[Piece]

    def __init__(self, pieces: Sequence[Piece], buffers: Tensor, spec: Spec) -> None:
        vars(self).update(pieces=pieces, buffers=buffers, spec=spec)

    @cached_property
    def weights(self) -> Tensor:
        return torch.cat([piece for _, piece in self.pieces])

    def with_buffers(self, buffers: Tensor) -> Params:
        return _InPieces(self.pieces, buffers, self.spec)

    def _keep(self, prefixes: Prefixes, inside: bool) -> Params:
        kept: list[Piece] = []
        for entries, piece in self.pieces:
            keep = [e.under(prefixes) == inside for e in entries]
            kept.append((tuple(itertools.compress(entries, keep)), _take(piece, entries, keep)))
        buffers = _take(self.buffers, self.spec.buffers, [e.under(prefixes) == inside for e in self.spec.buffers])
        return _in_pieces(kept, buffers, self.spec.part(prefixes) if inside else self.spec.without(prefixes))

    def _parameters(self, *, flat: bool = False) -> dict[str, Tensor]:
        split = (_split(piece, entries, flat=flat) for entries, piece in self.pieces)
        return {name: tensor for tensors in split for name, tensor in tensors.items()}

    def _of(self, spec: Spec) -> Params:
        return _InPieces(self.pieces, self.buffers, spec)


def _in_pieces(pieces: Sequence[Piece], buffers: Tensor, spec: Spec) -> Params:
    several = [(entries, piece) for entries, piece in pieces if entries]
    if len(several) > 1:
        return _InPieces(several, buffers, spec)
    return Params(several[0][1] if several else buffers[:0], buffers, spec)


def join(*parts: Params) -> Params:
    """Put the parts of one model together again: weights `[d]` and buffers `[b]` of the whole, in its order.

    In a loss the parts stay apart until the flat weights are asked for, so that a gradient by one of them leads through
    no other.

    Raises:
        ValueError: the parts do not make up the whole exactly once.
    """
    whole = parts[0].spec.whole or parts[0].spec
    names = sorted(e.name for p in parts for e in p.spec.entries)
    if names != sorted(e.name for e in whole.entries):
        raise ValueError(f"these parts do not make up {whole.arch}: {', '.join(names)}")
    present = [p for p in parts if p.spec.params or p.spec.buffers] or [parts[0]]
    if len(present) == 1:
        return present[0]._of(whole)
    weights: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for p in present:
        weights |= p._parameters(flat=True)
        buffers |= _split(p.buffers, p.spec.buffers, flat=True)
    empty = parts[0].buffers[:0]
    joined = torch.cat([empty, *(buffers[e.name] for e in whole.buffers)])
    differentiated = {weights[e.name].requires_grad for e in whole.params}
    if len(differentiated) > 1:  # in a loss, by some of the parts only
        return _in_pieces([((e,), weights[e.name]) for e in whole.params], joined, whole)
    return Params(torch.cat([empty, *(weights[e.name] for e in whole.params)]), joined, whole)


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


def parts(value: Any) -> list[Any]:
    """The model values and tensors in nested values."""
    if isinstance(value, Params | Tensor):
        return [value]
    elements: Iterable[Any] = ()
    if isinstance(value, dict | list | tuple):
        elements = value.values() if isinstance(value, dict) else value
    return [part for element in elements for part in parts(element)]


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path and leaf, e.g. `['w'].weights`; a model's weights and buffers are separate leaves."""
    match value:
        case Params():
            yield f"{where}.weights", value.weights
            yield f"{where}.buffers", value.buffers
        case Mapping():
            for key, child in value.items():
                yield from leaves(child, f"{where}[{key!r}]")
        case list() | tuple():
            for i, child in enumerate(value):
                yield from leaves(child, f"{where}[{i}]")
        case _:
            yield where, value


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of nested values with the function applied to each tensor, including a model's weights and buffers."""
    match value:
        case Params():
            return Params(function(value.weights), function(value.buffers), value.spec)
        case Tensor():
            return function(value)
        case dict():
            return {key: map_tensors(function, child) for key, child in value.items()}
        case list():
            return [map_tensors(function, child) for child in value]
    return value


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors of nested dictionaries and sequences; a dictionary's are sorted by name, as its order may change.

    It takes a fifth of the time of PyTorch's general function.
    """
    for value in values:
        if isinstance(value, dict):
            yield from tensors_of([value[name] for name in sorted(value)])
        else:
            yield value


def filled(values: Any, tensors: Iterator[Any]) -> Any:
    """A copy of nested dictionaries and tuples with other tensors, given in the order of `tensors_of`."""
    if isinstance(values, dict):
        return {name: filled(values[name], tensors) for name in sorted(values)}
    if isinstance(values, tuple):
        return tuple(filled(value, tensors) for value in values)
    return next(tensors)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """A key that is equal for two tensors that are the same view of the same memory."""
    at = tensor.untyped_storage()._cdata if tensor.is_meta else tensor.data_ptr()  # without numbers it has no place
    return at, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
