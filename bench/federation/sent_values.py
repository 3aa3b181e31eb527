"""The values that clients send, as channel and attack see them: both handle model values and leave all others alone."""

from typing import Any

from torch import Tensor

from bench.params import Params


class SentValues:
    """A record of what was sent so far, for messages to the user.

    Attributes:
        models: by name of a value, whether it was a model value.
        notices: messages about what happened, one line each.
    """

    def __init__(self) -> None:
        self.models: dict[str, bool] = {}
        self.notices: list[str] = []

    def add(self, name: str, value: Any) -> bool:
        """Record a value; returns whether it is a model value, which has weights."""
        is_model = isinstance(value, Params) and value.spec.d > 0
        self.models[name] = self.models.get(name, False) or is_model
        return is_model

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
