"""Values that are not finite: the error that ends a cell and, for `--executor debug`, where they first appeared.

`debug` also refuses losses that other executors compute in silence: without a gradient, or changing weights in place.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from bench.engine.device_data import SERVER
from bench.engine.prepare import Prepared
from bench.engine.step import Flat, Objective, differentiate_alone, flatten
from bench.params import Params, Spec
from bench.requests import ClassSums, Trained

_NAMED = 4  # at most so many layers in a message, because one bad number soon spreads to all


class Diverged(Exception):
    """Divergence: a loss or a weight is not finite.

    Attributes:
        round: the server version being computed, from 0 (-1: not known yet).
        what: the value that is not finite, and its place.
        owner: the client that was trained, or SERVER.
    """

    def __init__(self, what: str, round: int = -1, owner: int = SERVER) -> None:
        super().__init__(what, round, owner)
        self.what = what
        self.round = round
        self.owner = owner

    def __str__(self) -> str:
        return self.what


def owner_name(owner: int) -> str:
    """Return `the server` or the client's number, for messages."""
    return "the server" if owner == SERVER else f"client {owner}"


def check(request: Prepared, trained: Trained, first: str = "") -> None:
    """Check that trained values and their loss are finite.

    Args:
        first: the place where a value was not finite for the first time, if that is known.

    Raises:
        Diverged: a value is not finite.
    """
    began, owner = f"; first {first}" if first else "", request.address.owner
    for name, value in trained.values.items():
        if not _is_finite(value.weights if isinstance(value, Params) else value):
            raise Diverged(f"part {name!r} of {owner_name(owner)} is not finite after training{began}", owner=owner)
    if not _is_finite(trained.loss):
        raise Diverged(f"the loss of {owner_name(owner)} is not finite{began}", owner=owner)


def check_sums(owner: int, sums: ClassSums) -> None:
    """Check that statistics by class are finite: finite weights may give outputs, or squares of them, that are not.

    Raises:
        Diverged: a sum is not finite.
    """
    if not (_is_finite(sums.sum) and (sums.outer is None or _is_finite(sums.outer))):
        raise Diverged(f"the class statistics of {owner_name(owner)} are not finite", owner=owner)


class Watch:
    """Looks at every step of one client's training; it changes nothing, so that the bytes stay those of `sequential`.

    Attributes:
        first: the place where a value was not finite for the first time, in words; empty if there was none.
    """

    def __init__(self, request: Prepared) -> None:
        self.first = ""
        self._request = request
        self._step = 0
        self._function = request.recipe.name
        self._kinds, self._slices = dict(request.recipe.parts), dict(request.recipe.slices)
        self._note([f"weight {name}" for name in self._bad(flatten(request.request.values))])

    def differentiate(self, objective: Objective, trained: Flat) -> tuple[Flat, tuple[Tensor, Flat]]:
        """Return what `differentiate_alone` returns, and note what of it is not finite.

        Raises:
            TypeError: the loss changes a part in place, or depends on none.
        """
        kept = {name: tensor.clone() for name, tensor in trained.items()}

        def watched(leaves: Flat) -> tuple[Tensor, tuple[Tensor, Flat]]:
            value, rest = objective(leaves)
            if changed := [name for name, before in kept.items() if not _same(before, leaves[name])]:
                raise TypeError(
                    f"the loss of {self._function} changes the weights of {changed[0]!r} in place: return the loss, "
                    "and the engine takes the step"
                )
            if not value.requires_grad:
                raise TypeError(
                    f"the loss of {self._function} has no gradient: `torch.no_grad`, `.detach()` and `argmax` cut it "
                    "off from the weights"
                )
            return value, rest

        gradients, (loss, buffers) = differentiate_alone(watched, trained)
        problems = [] if _is_finite(loss) else [f"the loss ({float(loss)})"]
        whole = {name: self._whole(name, gradient) for name, gradient in gradients.items()}
        self._note(problems + [f"gradient of {name}" for name in self._bad(whole)], self._step + 1)
        return gradients, (loss, buffers)

    def after_step(self, parts: Flat) -> None:
        """Note which parts, as flat tensors, are not finite after a step."""
        self._step += 1
        self._note([f"weight {name}" for name in self._bad(parts)], self._step)

    def _note(self, names: list[str], step: int = 0) -> None:
        if names and not self.first:
            place = f"at step {step} of {self._request.steps}" if step else "before its first step"
            more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
            self.first = f"{place} ({self._function}): {', '.join(names[:_NAMED] + more)}"

    def _whole(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient of a part with zeros where it is frozen."""
        kind = self._kinds[name]
        return self._slices[name].put(gradient.new_zeros(kind.d), gradient) if isinstance(kind, Spec) else gradient

    def _bad(self, parts: Mapping[str, Tensor]) -> Iterator[str]:
        """Names of values that are not finite: layer and part for a model, the part alone for a tensor."""
        for key, flat in parts.items():
            name, _, buffers = key.partition("/")
            kind = self._kinds[name]
            if buffers == "buffers" or _is_finite(flat):
                continue
            if isinstance(kind, Spec):
                named = Params(flat, flat.new_zeros(kind.b), kind).tensors()
                yield from (f"{layer} in {name!r}" for layer, tensor in named.items() if not _is_finite(tensor))
            else:
                yield repr(name)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
