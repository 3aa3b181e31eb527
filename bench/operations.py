"""Recordings of what a network computes: a list of torch's operations, beside the tensors that they work on."""

import operator
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.errors import UserError

_OPERATION = re.compile(r"aten\.\w+\.\w+")
_FILES = {"from_file"}
"""Torch's operations that read or write files."""
_SIZES = ("add", "sub", "mul", "floordiv", "mod", "truediv", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge")
"""Functions of Python's `operator` that the computation may use, on sizes and on lists of tensors."""
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}
"""Operations that compute nothing."""
_AT_ONCE = 500  # samples


class NotExportable(UserError):
    """Network whose computation cannot be written down as a list of torch's operations."""


class Recording(NamedTuple):
    """A network's computation.

    Attributes:
        operations: in their order, in values that JSON can hold.
        tensors: on which they work, by name.
        at_once: how many samples the computation takes; 1 where it is written for a single one.
        names: of those tensors that the network has as parameters or buffers, how it calls them.
    """

    operations: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    at_once: int
    names: dict[str, str]

    def of(self, network: nn.Module) -> "Recording | None":
        """The same computation with the tensors of another network; None where it has others.

        To record takes seconds, and networks of one architecture differ in their tensors alone. Whether their
        computation is the same, too, is not looked at here.
        """
        held = _held(network)
        taken = {name: held.get(key) for name, key in self.names.items()}
        if any(tensor is None or tensor.shape != self.tensors[name].shape for name, tensor in taken.items()):
            return None
        tensors = {name: tensor.detach().clone() for name, tensor in taken.items() if tensor is not None}
        return self._replace(tensors={**self.tensors, **tensors})


def _held(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a network by name."""
    return {
        **dict(network.named_parameters(remove_duplicate=False)),
        **dict(network.named_buffers(remove_duplicate=False)),
    }


def recorded(network: nn.Module, example: Tensor) -> Recording:
    """Write a network's computation down.

    Args:
        network: in `eval` mode.
        example: `[n, ...]` samples as the network takes them; the number of samples may differ later.

    Raises:
        NotExportable: it depends on values of samples, or on operations that are not torch's own.
    """
    try:
        return _recording(network, example, _AT_ONCE)
    except NotExportable:  # it may be that the number of samples is a plain number to it, as by `len(x)`
        return _recording(network, example[:1], 1)


def _recording(network: nn.Module, example: Tensor, at_once: int) -> Recording:
    program = _program(network, example, varying=at_once > 1)
    signature = program.graph_signature
    held = {**program.state_dict, **program.constants}
    owned = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {name: held[owned[name]].detach().clone() for name in owned}
    nodes: list[dict[str, Any]] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in owned:
            nodes.append({"op": "input", "name": node.name})
        elif node.op == "call_function":
            if (name := _name(node.target)).split(".")[1] not in _CHECKS:
                nodes.append({"op": name, "name": node.name, "args": _plain(node.args), "kwargs": _plain(node.kwargs)})
        elif node.op == "output":
            nodes.append({"op": "output", "args": _plain(node.args[0])})
        elif node.op != "placeholder":
            raise NotExportable(f"its computation has a {node.op}, which is no operation")
    known = _held(network)
    return Recording(nodes, tensors, at_once, {name: key for name, key in owned.items() if key in known})


def _program(network: nn.Module, example: Tensor, *, varying: bool) -> torch.export.ExportedProgram:
    """The program that torch exports, for a varying number of samples or that of the example."""
    rows = {0: torch.export.Dim("rows")} if varying else None
    strict = any(isinstance(layer, nn.RNNBase) for layer in network.modules())  # follows tensors in lists, and is slow
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of would show in the outputs, which `exported` compares
        try:
            return torch.export.export(network, (example,), dynamic_shapes=(rows,), strict=strict)
        except Exception as error:  # of many kinds, for the network may be a user's
            raise NotExportable(f"its network is no fixed list of operations ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _name(target: Any) -> str:
    """The name of an operation, such as `aten.linear.default`.

    Raises:
        NotExportable: it is not torch's own.
    """
    name = str(target) if isinstance(target, torch._ops.OpOverload) else f"operator.{getattr(target, '__name__', '')}"
    if function_of(name) is None:
        raise NotExportable(f"it uses the operation {target}, which is not torch's own")
    return name


def function_of(name: str) -> Any:
    """The operation of a name; None for what the computation may not use."""
    room, _, rest = name.partition(".")
    if room == "operator":
        return getattr(operator, rest) if rest in _SIZES else None
    if not _OPERATION.fullmatch(name) or rest.split(".")[0] in _FILES:
        return None
    packet, overload = rest.split(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


def _plain(value: Any) -> Any:
    """Arguments of an operation in values that JSON can hold."""
    match value:
        case torch.fx.Node():
            return {"value": value.name}
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {"torch": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": "cpu"}
        case list() | tuple():
            return [_plain(v) for v in value]
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items()}
    raise NotExportable(f"an operation of its network takes a {type(value).__name__}")


def restored(plain: Any, values: Mapping[str, Any]) -> Any:
    """Arguments of an operation from their JSON form, the inverse of `_plain`."""
    match plain:
        case {"value": str(name)}:
            return values[name]
        case {"torch": str(name)}:
            value = getattr(torch, name, None)
            if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
                raise ValueError(f"{name!r} is no type of torch")
            return value
        case {"device": _}:
            return torch.device("cpu")
        case list():
            return [restored(v, values) for v in plain]
    return plain
