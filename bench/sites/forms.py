"""Forms of the messages of a round, as the rehearsal has seen them: names, types and shapes, counts, work and bytes.

A message of another form is refused, in both directions.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from bench.engine.programs import Sent, Work
from bench.federation.snapshot import plain_spec
from bench.params import Params, leaves, parts
from bench.sites.messages import Refused

SLACK = 10
"""Work that a site may report, as a multiple of the rehearsal's by training sample: it may hold more for validation."""

_Kind = Literal["upload", "exchange", "round", "reply"]


class NamedForms(BaseModel):
    """Forms of the values of one kind of message by name, and the names that are always there."""

    model_config = ConfigDict(extra="forbid")

    forms: dict[str, list[Any]] = {}
    always: list[str] = []


class Forms(BaseModel):
    """Facts about the messages of a round.

    Attributes:
        values: by kind: `upload` and `exchange` of a site, `round` and `reply` of the server.
        counts: smallest and largest number in a site's round of `upload`, `exchange` and `work`.
        weights: smallest and largest weight of an upload; None if no upload has one.
        passes: most steps taken, or samples read, in a round by training sample.
        bytes: size of the largest message `up` and `down`.
    """

    model_config = ConfigDict(extra="forbid")

    values: dict[_Kind, NamedForms] = {}
    counts: dict[str, tuple[int, int]] = {}
    weights: tuple[float, float] | None = None
    passes: int = 0
    bytes: dict[str, int] = {}

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, kind: _Kind, values: Any, clients: int | None = None) -> None:
        """Learn the forms of a message's values.

        Args:
            clients: number of sites in the rehearsal where the job has more: a dimension of that size may be theirs.
        """
        named = _named(values)
        known = self.values.setdefault(kind, NamedForms(always=sorted(named)))
        known.always = [name for name in known.always if name in named]
        for name, value in named.items():
            known.forms[name] = _merged(known.forms.get(name), _form(value, clients))

    def learn_round(self, events: Sequence[Work | Sent], n_train: int) -> None:
        """Learn the counts, weights and work of a site's round."""
        done = _Done.of(events)
        for name, number in done.counts.items():
            low, high = self.counts.get(name, (number, number))
            self.counts[name] = min(low, number), max(high, number)
        self.passes = max(self.passes, math.ceil(max(done.steps, done.samples) / n_train))
        if weights := [*done.weights, *(self.weights or ())]:
            self.weights = min(weights), max(weights)

    def scaled(self, work: int, clients: int) -> "Forms":
        """Facts of the job: it trains `work` times as long as its rehearsal, with `clients` times as many sites."""
        counts = {name: (low, high * work * clients if high > 1 else high) for name, (low, high) in self.counts.items()}
        sizes = {way: 4 * size * clients + 2**20 for way, size in self.bytes.items()}
        return self.model_copy(update={"counts": counts, "passes": self.passes * work * clients, "bytes": sizes})

    # -- checking ------------------------------------------------------------------------------------------------------

    def check(self, kind: _Kind, values: Any, sent: Mapping[str, Any] | None = None) -> None:
        """Refuse values of another form.

        Args:
            sent: values that the sender was sent; it may send one of their names with a value of the same form.

        Raises:
            Refused: a name is unknown or missing, or a value has another type or shape.
        """
        known, named = self.values.get(kind, NamedForms()), _named(values)
        if named is not values and "" not in known.forms:
            raise Refused(f"its {kind} has no names")
        for name, value in named.items():
            due = known.forms.get(name) or (_form(sent[name]) if sent and name in sent else None)
            if due is None:
                raise Refused(f"it sent {name!r}, and the method sends {', '.join(known.forms) or 'nothing'}")
            if _merged(due, form := _form(value)) != due:
                raise Refused(f"{name} is {form}, where {due} is due")
        if lacking := [name for name in known.always if name not in named]:
            raise Refused(f"it did not send {', '.join(lacking)}")

    def check_round(self, events: Sequence[Work | Sent], n_train: int, most: float, *, ended: bool) -> None:
        """Refuse a round of other counts, weights or work.

        Args:
            events: what the site has done so far.
            n_train: its number of training samples.
            most: largest weight by training sample, as a multiple of the rehearsal's; one that was always 1 is 1.
            ended: whether the round has ended.

        Raises:
            Refused: a number is out of its range.
        """
        done = _Done.of(events)
        for name, number in done.counts.items():
            low, high = self.counts.get(name, (0, 0))
            if number > high or (ended and name != "work" and number < low):
                raise Refused(f"{number} events of the kind {name!r} in a round, where {low} to {high} are due")
        if max(done.steps, done.samples) > (bound := SLACK * max(1, self.passes) * n_train):
            raise Refused(
                f"work of {done.steps} steps and {done.samples} samples in a round, where {bound} is the most"
            )
        if self.weights is None and done.weights:
            raise Refused(f"its upload has the weight {done.weights[0]:g}, and the method's uploads have none")
        if self.weights is not None:
            most_here = self.weights[1] * (1 if self.weights == (1, 1) else most * n_train)
            if len(done.weights) < done.counts["upload"]:
                raise Refused("its upload has no weight, and the method's uploads have one")
            if wrong := [weight for weight in done.weights if not 0 < weight <= most_here]:
                raise Refused(f"its upload has the weight {wrong[0]:g}, where at most {most_here:g} is due")


class _Done(NamedTuple):
    """Sums over the events of a site's round."""

    counts: dict[str, int]
    steps: int
    samples: int
    weights: list[float]

    @classmethod
    def of(cls, events: Sequence[Work | Sent]) -> "_Done":
        work = [event for event in events if isinstance(event, Work)]
        waits = [event for event in events if isinstance(event, Sent) and event.waits]
        sent = [event for event in events if isinstance(event, Sent) and not event.waits]
        counts = {"work": len(work), "exchange": len(waits), "upload": len(sent)}
        weights = [event.weight for event in sent if event.weight is not None]
        return cls(counts, sum(event.steps for event in work), sum(event.samples for event in work), weights)


def largest(values: Any) -> float:
    """The largest absolute value of all numbers in nested values; 0 if there is none."""
    return max((_size(leaf) for _, leaf in leaves(values)), default=0.0)


def check_numbers(values: Any, sent: Any, most: float, n_train: int, models: Collection[int]) -> None:
    """Refuse numbers that no training makes.

    Args:
        values: the values of an upload.
        sent: all that the site was sent in the round.
        most: largest weight of a model, as a multiple of the largest number in `sent`, at least 1. Running variances
            are squares, and so is their bound; values other than models may be sums over samples.
        n_train: the site's number of training samples.
        models: sizes of the cell's models, which may also be sent as tensors.

    Raises:
        Refused: a number is larger, or a variance is negative.
    """
    bound = most * max(1.0, largest(sent))
    for model in parts(values):
        if isinstance(model, Params):
            for name, tensor in model.tensors().items():
                if name.endswith("running_var") and tensor.numel() and float(tensor.min()) < 0:
                    raise Refused(f"{name} is a variance, and negative")
    for where, leaf in leaves(values):
        bound_here = bound * n_train
        if where.endswith(".buffers"):
            bound_here = bound * most
        elif where.endswith(".weights") or (isinstance(leaf, Tensor) and leaf.numel() in models):
            bound_here = bound
        if (size := _size(leaf)) > bound_here:
            raise Refused(f"{where} holds {size:g}, where {bound_here:g} is the most (`--max-update` of the job)")


def _size(leaf: Any) -> float:
    if isinstance(leaf, Tensor):
        return max(-float(leaf.min()), float(leaf.max())) if leaf.numel() else 0.0
    return abs(float(leaf)) if isinstance(leaf, int | float) else 0.0


def _named(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {"": values}


def _form(value: Any, clients: int | None = None) -> list[Any]:
    match value:
        case Params():
            return ["model", *plain_spec(value.spec)]
        case Tensor():
            shape = [None if size == clients else size for size in value.shape]
            return ["tensor", str(value.dtype).removeprefix("torch."), shape]
        case list() | tuple():
            return ["list", reduce(_merged, (_form(child, clients) for child in value), None)]
        case Mapping():
            return ["dict", reduce(_merged, (_form(child, clients) for child in value.values()), None)]
        case bool() | None | str():
            return [type(value).__name__]
    return ["number"]


def _merged(first: list[Any] | None, other: list[Any] | None) -> Any:
    """The narrowest form that both have; a size that differs is None, and kinds that differ are a choice, `any`."""
    if first is None or other is None or first == other:
        return other if first is None else first
    match first, other:
        case ["tensor", dtype, [*sizes]], ["tensor", same, [*others]] if dtype == same and len(sizes) == len(others):
            return ["tensor", dtype, [a if a == b else None for a, b in zip(sizes, others, strict=True)]]
        case ["list" | "dict" as kind, inner], [same, more] if kind == same:
            return [kind, _merged(inner, more)]
        case ["any", *choice], _:
            for i, form in enumerate(choice):
                if form[0] == other[0] and (both := _merged(form, other))[0] != "any":
                    return ["any", *choice[:i], both, *choice[i + 1 :]]
            return ["any", *sorted([*choice, other], key=str)]
        case _, ["any", *_]:
            return _merged(other, first)
    return ["any", *sorted([first, other], key=str)]
