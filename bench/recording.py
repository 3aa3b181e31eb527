"""A training step mapped over lanes, recorded as the tensor operations it comes down to and played back.

Played back are the same operations on the same shapes, so the bytes are the same. Left out is what changes nothing:
Python's share, views of what they view, operations done twice, and constants.
"""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

_RECORD_AFTER = 100  # calls; recording costs about as much as so many
_SMALL = 2**16  # numbers of a constant that is worth keeping
_VIEWS = {"view", "_unsafe_view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "alias", "detach"}
_METHODS = {"view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "split_with_sizes", "select", "gather"}
_METHODS |= {"bmm", "mm", "relu", "add", "sub", "mul", "div", "neg", "sum", "ne", "exp", "log", "sqrt", "pow"}
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}


class Mapped:
    """A function mapped over lanes. After some calls with one shape it is recorded once and played back from then on.

    Several threads may call it at a time; they do not wait for one another once it is recorded (on a CPU). Its
    arguments are tensors and nested dictionaries of them; `in_dims` is that of `torch.func.vmap`.
    """

    def __init__(self, function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> None:
        self._eager = vmap(function, in_dims=in_dims)
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[Callable[..., list[Tensor]], pytree.TreeSpec]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        given = list(_tensors(args))
        at = tuple(t.shape for t in given)
        if at in self._recorded:
            play, results = self._recorded[at]
            with torch.no_grad():
                return pytree.tree_unflatten(play(*given), results)
        with self._lock:
            self._calls[at] = self._calls.get(at, 0) + 1
            if self._calls[at] > _RECORD_AFTER and at not in self._recorded:
                self._recorded[at] = self._record(args, given)
            return self._eager(*args)

    def _record(self, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        results: list[pytree.TreeSpec] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            out, spec = pytree.tree_flatten(self._eager(*_filled(args, iter(tensors))))
            results.append(spec)
            return out

        recorded = tidy(make_fx(flat)(*given))
        return (_scripted(recorded, given) if given[0].device.type == "cpu" else recorded.forward), results[-1]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors, a dictionary's by name: the next call may have them in another order.

    A fifth of the time that PyTorch's general way takes.
    """
    for value in values:
        if isinstance(value, dict):
            yield from _tensors([value[name] for name in sorted(value)])
        else:
            yield value


def _filled(values: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nested values with other tensors."""
    if isinstance(values, dict):
        return {name: _filled(values[name], tensors) for name in sorted(values)}
    if isinstance(values, tuple):
        return tuple(_filled(value, tensors) for value in values)
    return next(tensors)


def tidy(recorded: fx.GraphModule) -> fx.GraphModule:
    """Leave out what changes no number; a graph with in-place or random operations stays as it is."""
    graph = recorded.graph
    operations = [node for node in graph.nodes if node.op == "call_function"]
    if any(_writes_or_draws(node) for node in operations):
        return recorded
    known: dict[Any, fx.Node] = {}
    for node in operations:
        kept = _viewed(node) or known.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _keep_constants(recorded)
    graph.eliminate_dead_code()
    _call_methods(graph)
    recorded.recompile()
    return recorded


def _scripted(recorded: fx.GraphModule, given: list[Tensor]) -> Callable[..., list[Tensor]]:
    """The same operations one after the other without Python between them: faster, and threads do not wait for it."""
    with warnings.catch_warnings(), torch.no_grad():
        # What is to take its place (torch.compile) needs a C++ compiler and longer than most cells of such models take.
        warnings.filterwarnings("ignore", "`torch.jit.trace")
        try:
            scripted: Callable[..., list[Tensor]] = torch.jit.trace(  # type: ignore[no-untyped-call]
                recorded, tuple(given), check_trace=False, strict=False
            )
        except RuntimeError:  # an operation that it does not know
            return recorded.forward
    return scripted


def _writes_or_draws(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target.__name__ != "getitem" if callable(target) else True
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _name(node: fx.Node) -> str:
    return str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""


def _viewed(node: fx.Node) -> fx.Node | None:
    """The earlier node that this one shows as it is, if there is one: two transpositions, a view of equal shape."""
    source = node
    while _name(source) in _VIEWS:
        before = source.args[0]
        assert isinstance(before, fx.Node)
        source = before
        if _layout(source) == _layout(node):
            return source
    return None


def _layout(node: Any) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return node
    return value.shape, value.stride(), value.storage_offset(), value.dtype


def _keep_constants(recorded: fx.GraphModule) -> None:
    """Compute what depends on no input once, now."""
    graph = recorded.graph
    constants: dict[fx.Node, Tensor] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
            continue
        shape_only = _name(node) in _SHAPE_ONLY
        if node.meta["val"].numel() > _SMALL or not all(shape_only or n in constants for n in node.all_input_nodes):
            continue
        inputs = {n: _empty(n.meta["val"]) if shape_only else constants[n] for n in node.all_input_nodes}
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), inputs.__getitem__)
        constants[node] = node.target(*args, **kwargs)
    for node, value in constants.items():
        if all(user in constants for user in node.users):
            continue
        name = f"constant_{node.name}"
        recorded.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))


def _call_methods(graph: fx.Graph) -> None:
    """A tensor's own method is the same operation without the way through Python, two microseconds a call."""
    for node in graph.nodes:
        name = _name(node) if node.op == "call_function" else ""
        if name in _METHODS and isinstance(node.args[0], fx.Node):
            node.op, node.target = "call_method", name


def _empty(like: Tensor) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
