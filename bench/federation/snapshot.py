"""Conversion of state into tensors and plain JSON, for checkpoints, and back; a shared tensor is kept once."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bench.errors import UserError
from bench.model_call import Composed, Kind, composed_spec, reference, resolve
from bench.params import Params, Spec, memory_of

Plain = Any  # what JSON can hold


class Packer:
    """Turns nested state (model values, tensors, plain values, lists, dicts) into named tensors and JSON.

    A tensor's name is its group, a slash, and its number in the group. The tensors are those of the state, not copies.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._sizes: Counter[str] = Counter()
        self._group = ""

    def pack(self, value: Any, group: str = "state") -> Plain:
        """Return the JSON form of a value; its tensors go to `self.tensors`, new ones under `group`.

        Raises:
            TypeError: a value of another kind, or a dict whose keys are neither strings nor integers.
        """
        self._group = group
        return self._pack(value, f"state of {group}")

    def _pack(self, value: Any, where: str) -> Plain:
        match value:
            case Params():
                return {
                    "$params": [self._tensor(value.weights), self._tensor(value.buffers)],
                    "spec": plain_spec(value.spec),
                }
            case Tensor():
                return {"$tensor": self._tensor(value)}
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return [self._pack(v, where) for v in value]
            case Mapping():
                if not all(isinstance(k, str | int) for k in value):
                    raise TypeError(f"{where} has a dict with keys other than text and integers: {list(value)!r}")
                return {"$dict": [[k, self._pack(v, f"{where}[{k!r}]")] for k, v in value.items()]}
        raise TypeError(f"{where} may hold model values, tensors and plain values, not {type(value).__name__}")

    def _tensor(self, tensor: Tensor) -> str:
        at = memory_of(tensor)
        if at not in self._names or not tensor.numel():
            name = f"{self._group}/{self._sizes[self._group]}"
            self._sizes[self._group] += 1
            self.tensors[name] = tensor
            self._names[at] = name
            return name
        return self._names[at]


def unpack(plain: Plain, tensors: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> Any:
    """Restore a value from its JSON form: the inverse of `Packer.pack`; `specs` are the whole specs by architecture.

    Raises:
        UserError: a model value is of an architecture that is not among the specs.
    """
    match plain:
        case {"$params": [weights, buffers], "spec": spec}:
            return Params(tensors[weights], tensors[buffers], spec_of(spec, specs))
        case {"$tensor": name}:
            return tensors[name]
        case {"$dict": items}:
            return {k: unpack(v, tensors, specs) for k, v in items}
        case list():
            return [unpack(v, tensors, specs) for v in plain]
    return plain


def plain_spec(spec: Spec) -> Plain:
    """JSON form of a spec: its architecture, and the names of the tensors where it is a part."""
    names = None if spec.whole is None else [e.name for e in spec.entries]
    module = spec.module
    if not isinstance(module, Composed):
        return [spec.arch, names]
    kinds = [[name, {"spec": plain_spec(k)} if isinstance(k, Spec) else k] for name, k in module.kinds.items()]
    return [{"function": reference(module.function), "parts": kinds}, names]


def spec_of(plain: Plain, specs: Mapping[str, Spec]) -> Spec:
    """Read the layout of a model value from its plain form (`plain_spec`); `specs` are the whole ones by architecture.

    Raises:
        UserError: it is of a model that the cell does not have.
    """
    arch, names = plain
    if isinstance(arch, str):
        if arch not in specs:
            raise UserError(
                f"saved values are of a model {arch}, and the cell's are {', '.join(specs)}: the file that "
                "`pretrained` names, or the model's code, has changed since; put it back"
            )
        spec = specs[arch]
    else:
        spec = composed_spec(resolve(arch["function"]), {name: _kind(k, specs) for name, k in arch["parts"]})
    return spec if names is None else spec.part(tuple(names))


def _kind(plain: Plain, specs: Mapping[str, Spec]) -> Kind:
    if isinstance(plain, dict):
        return spec_of(plain["spec"], specs)
    return tuple(plain) if isinstance(plain, list) else plain
