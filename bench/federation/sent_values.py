"""The values that clients send, as channel and attack see them: both handle model values and leave all others alone."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from bench.nested import parts
from bench.params import Params

_WORTH_A_NOTICE = 0.01
"""Share of the numbers sent: what channel and attack leave alone is mostly less, such as counts of classes."""


class SentValues:
    """A record of what was sent so far, for messages to the user.

    Attributes:
        models: by name of a value, whether it was a model value.
        notices: messages about what happened, one line each.
    """

    def __init__(self) -> None:
        self.models: dict[str, bool] = {}
        self.notices: list[str] = []
        self._weights: set[str] = set()  # what clients sent as weights, in words
        self._names: dict[int, list[list[str]]] = {}  # by number of a message, the groups of names that it had
        self._numbers = Counter[bool]()  # how many were sent in model values, and how many beside them
        self._counted = False

    def add(self, name: str, value: Any) -> bool:
        """Record a value; returns whether it is a model value, which has weights."""
        is_model = isinstance(value, Params) and value.spec.d > 0
        self.models[name] = self.models.get(name, False) or is_model
        self._numbers[is_model] += sum(p.spec.d if isinstance(p, Params) else p.numel() for p in parts(value))
        return is_model

    def add_message(self, number: int, names: Collection[str], weight: float | None) -> None:
        """Record what a client shows by sending a message: its weight (None: that is its number of samples), and for
        which of several names it has something."""
        if weight is None:
            self._weights.add("numbers of training samples, the weights of the mean")
        elif weight != 1:
            self._weights.add("weights that clients compute for their uploads")
        groups = self._names.setdefault(number, [])
        if sorted(names) not in groups:
            groups.append(sorted(names))

    @property
    def beside_models(self) -> list[str]:
        """All that clients send beside the numbers of model values, in words."""
        names = [repr(name) for name, is_model in sorted(self.models.items()) if not is_model]
        some = [set().union(*groups) - set(groups[0]).intersection(*groups) for groups in self._names.values()]
        chosen = set(map(repr, set().union(*some)))
        return [
            *([f"{', '.join(names)}, which clients send as they are"] if names else []),
            *([f"which of {', '.join(sorted(chosen))} a client sends"] if chosen else []),
            *sorted(self._weights),
        ]

    def state(self) -> dict[str, Any]:
        """The record in plain values."""
        return {"sent": self.models, "weights": sorted(self._weights), "names": self._names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.models = dict(state["sent"])
        self._weights, self._names = set(state.get("weights", ())), dict(state.get("names", {}))

    def note_rest(self, beginning: str, end: str) -> None:
        """Tell the user, once and after the first messages, how much of what was sent is beside model values.

        Args:
            beginning: the first words of the message.
            end: what becomes of these numbers.
        """
        share = self._numbers[False] / max(1, self._numbers.total())
        if share >= _WORTH_A_NOTICE and not self._counted:
            names = ", ".join(repr(name) for name, is_model in self.models.items() if not is_model)
            self.note(
                f"{beginning} {share:.0%} of the numbers that clients send are no model values ({names}), and {end}"
            )
        self._counted = self._counted or self._numbers.total() > 0

    def note(self, text: str) -> None:
        """Tell the user something once."""
        if text not in self.notices:
            self.notices.append(text)

    @property
    def without_models(self) -> str:
        """Words for what was sent, if no model value was among it; else empty."""
        if any(self.models.values()):
            return ""
        return f"no model value, only {', '.join(map(repr, self.models))}" if self.models else "nothing"


def origin(base: Any, value: Params) -> Tensor | None:
    """The downloaded weights `[d]` of the tensors of a value; None if they were not downloaded under its name."""
    if not isinstance(base, Params):
        return None
    if base.spec == value.spec:
        return base.weights
    if base.spec.arch == value.spec.arch and set(value.spec.params) <= set(base.spec.params):
        return base.part(*(entry.name for entry in value.spec.params)).weights
    return None
