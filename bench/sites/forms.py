"""Forms of uploads: by name a value's kind, type and shape, where a shape that varies has no number."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bench.federation.snapshot import plain_spec
from bench.params import Params
from bench.sites.messages import Refused


class Forms:
    """The forms of a job's uploads and exchanges.

    Args:
        known: forms as `plain` has them; None: nothing is known, and everything is learned and taken.

    Attributes:
        plain: for `upload` and `exchange` the `forms` by name, and which names are `always` there; for the job's file.
    """

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.plain: dict[str, dict[str, Any]] = {} if known is None else dict(known)
        self._learns = known is None

    def check(self, kind: str, values: Any) -> None:
        """Refuse values that are of no known form; learn them instead where nothing is known yet.

        Raises:
            Refused: a name is unknown, or a value has another type or shape.
        """
        if not isinstance(values, dict):
            raise Refused("an upload has no names")
        if self._learns:
            self._learn(kind, values)
            return
        known = self.plain.get(kind, {"forms": {}, "always": []})
        for name, value in values.items():
            due, form = known["forms"].get(name), _form(value)
            if due is None:
                raise Refused(f"it sent {name!r}, and the method sends {', '.join(known['forms']) or 'nothing'}")
            if _merged(due, form) != due:
                raise Refused(f"{name} is {form}, where {due} is due")
        if lacking := [name for name in known["always"] if name not in values]:
            raise Refused(f"it did not send {', '.join(lacking)}")

    def _learn(self, kind: str, values: dict[str, Any]) -> None:
        known = self.plain.setdefault(kind, {"forms": {}, "always": sorted(values)})
        known["always"] = [name for name in known["always"] if name in values]
        for name, value in values.items():
            form, earlier = _form(value), known["forms"].get(name)
            known["forms"][name] = form if earlier is None else _merged(earlier, form)


def _form(value: Any) -> list[Any]:
    match value:
        case Params():
            return ["model", *plain_spec(value.spec)]
        case Tensor():
            return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
    return ["other"]


def _merged(first: list[Any], other: list[Any]) -> list[Any]:
    """The narrowest form that both have."""
    if first == other:
        return first
    if first[0] == other[0] == "tensor" and first[1] == other[1] and len(first[2]) == len(other[2]):
        return [*first[:2], [a if a == b else None for a, b in zip(first[2], other[2], strict=True)]]
    return ["other"]
