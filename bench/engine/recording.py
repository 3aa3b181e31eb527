"""A function of tensors, recorded as the tensor operations it comes down to and played back.

Played back are the same operations on the same shapes, so the bytes are the same. Left out is what changes nothing:
Python's share, views of what they view, operations done twice, and constants.
"""

import contextlib
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[[list[Tensor]], list[Tensor]]

_RECORD_AFTER = 100  # calls; recording costs about as much as so many save
_SMALL = 2**16  # numbers of a constant that is worth keeping
_VIEWS = {"view", "_unsafe_view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "alias", "detach"}
_METHODS = {"view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "split_with_sizes", "select", "gather"}
_METHODS |= {"bmm", "mm", "relu", "add", "sub", "mul", "div", "neg", "sum", "ne", "exp", "log", "sqrt", "pow"}
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}


class Recorded:
    """A function of a list of tensors that is recorded after some calls with equal shapes and played back from then on.

    What cannot be recorded, because it reads numbers in Python, goes on as it is.

    Several threads may run it at a time; they wait for one another only while it is recorded.

    Args:
        function: what is recorded.
        around: makes, of the function or its recording, what is run; a module that TorchScript can translate.
        patience: how many times the usual number of calls the first shape waits for: with it, PyTorch loads its tracer,
            which takes seconds.
        in_place: whether a recording may change vectors that it is given where they lie; its arguments are lists of
            tensors then, and it is checked. Else it returns inference tensors, which is a tenth faster for small ones.
    """

    def __init__(
        self,
        function: Function,
        around: Callable[[Any], Callable[..., list[Tensor]]],
        *,
        patience: int = 1,
        in_place: bool = False,
    ) -> None:
        self._function = function
        self._around = around
        self._patience = patience
        self._in_place = in_place
        self._eager = around(function)
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, Callable[..., list[Tensor]]] = {}
        self._door, self._inside, self._running = threading.Lock(), threading.Condition(), 0

    def run(self, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        """Run it on `args`, in which the function is called so many times.

        Args:
            like: tensors of the shapes that the function gets, and with numbers such as it gets.
        """
        at = tuple(t.shape for t in like)
        if at not in self._recorded and self._comes_in(at, like, calls, args):
            try:
                return self._eager(*args)
            finally:
                self._goes_out()
        return self._play(self._recorded[at], args)

    def _play(self, made: Callable[..., list[Tensor]], args: Any) -> list[Tensor]:
        if made is self._eager:
            return made(*args)
        with torch.no_grad() if self._in_place else torch.inference_mode(), _as_recorded():
            return made(*args)

    def _comes_in(self, at: Any, like: list[Tensor], calls: int, args: Any) -> bool:
        """Whether it is still to run as it is. If not, it is recorded now, while nobody runs it: tracing changes what
        a module's call does, in all threads."""
        with self._door:
            if at in self._recorded:
                return False
            with self._inside:
                if self._calls.get(at, 0) < _RECORD_AFTER * (1 if self._recorded else self._patience):
                    self._calls[at] = self._calls.get(at, 0) + calls
                    self._running += 1
                    return True
                self._inside.wait_for(lambda: not self._running)
            self._recorded[at] = self._checked(like, args) if self._in_place else self._record(like)
            return False

    def _checked(self, like: list[Tensor], args: Any) -> Callable[..., list[Tensor]]:
        """A recording that gave the same bytes over all steps of `args` as well: it changes what it is given."""
        made = self._record(like)
        found, right = (
            self._play(one, [[t.clone() for t in tensors] for tensors in args]) for one in (made, self._eager)
        )
        return made if _equal(found, right) else self._eager

    def _goes_out(self) -> None:
        with self._inside:
            self._running -= 1
            self._inside.notify_all()

    def _record(self, like: list[Tensor]) -> Callable[..., list[Tensor]]:
        """A recording that gives the same bytes, else the function as it is.

        Recorded are samples and weights in reverse: what was read in Python, or lost, would stay what it was.
        """
        try:
            recorded = record(self._function, [t.flip(0) if t.dim() else t for t in like])
        except (RuntimeError, TypeError, ValueError):  # it reads numbers, to decide what comes next for example
            return self._eager
        recorded = _of_list(update_in_place(recorded) if self._in_place else recorded)
        right = self._function([t.clone() for t in like])
        if not _equal(recorded([t.clone() for t in like]), right):
            return self._eager
        scripted = _scripted(recorded, like, self._around)
        return scripted if scripted and self._same(scripted, like, right) else self._around(recorded)

    def _same(self, scripted: torch.jit.ScriptModule, like: list[Tensor], right: list[Tensor]) -> bool:
        """Whether TorchScript takes the operations for what they are; to it, the `True` of `mask & True` is a 1."""
        (step,) = scripted.children()
        try:
            return _equal(self._play(step, [[t.clone() for t in like]]), right)
        except RuntimeError:
            return False


def _equal(found: list[Tensor], right: list[Tensor]) -> bool:
    return all(
        a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(found, right, strict=True)
    )


def _as_recorded() -> contextlib.AbstractContextManager[None]:
    """TorchScript replaces some operations by others, which round differently, unless it is told not to."""
    found: contextlib.AbstractContextManager[None] = torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
    return found


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors of nested values, a dictionary's by name: it may have them in another order at another time.

    A fifth of the time that PyTorch's general way takes.
    """
    for value in values:
        if isinstance(value, dict):
            yield from tensors_of([value[name] for name in sorted(value)])
        else:
            yield value


def filled(values: Any, tensors: Iterator[Any]) -> Any:
    """The same nested values with other tensors."""
    if isinstance(values, dict):
        return {name: filled(values[name], tensors) for name in sorted(values)}
    if isinstance(values, tuple):
        return tuple(filled(value, tensors) for value in values)
    return next(tensors)


def record(function: Function, like: list[Tensor]) -> fx.GraphModule:
    """The operations of a function, each tensor an argument of its own, without what changes no number."""
    recorded = make_fx(lambda *tensors: function(list(tensors)))(*like)
    if any(_writes(node) for node in recorded.graph.nodes):  # the backward pass of an FFT does
        recorded = make_fx(functionalize(recorded))(*like)
    return tidy(recorded)


def tidy(recorded: fx.GraphModule) -> fx.GraphModule:
    """Leave out what changes no number; a graph with in-place or random operations stays as it is."""
    graph = recorded.graph
    operations = [node for node in graph.nodes if node.op == "call_function"]
    if any(_writes(node) or _draws(node) for node in operations):
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


def update_in_place(recorded: fx.GraphModule) -> fx.GraphModule:
    """Have a large vector of weights change where it lies, tensor by tensor, each as soon as its gradient is there.

    Gradients put side by side first, and weights in new memory, would take three ways through memory more.
    """
    for node in recorded.graph.nodes:
        if _name(node) == "addcmul" and _in_pieces(node):
            _change_pieces(recorded.graph, node)
    recorded.recompile()
    return recorded


def _in_pieces(update: fx.Node) -> bool:
    """Whether it is `weights - rate * (gradients side by side)` of an argument that is used in these pieces only."""
    weights, rate, gradient = (node for node in update.args if isinstance(node, fx.Node))
    shape, others = weights.meta["val"].shape, [node for node in weights.users if node is not update]
    given = weights.op == rate.op == "placeholder" and rate.meta["val"].dim() == 0
    large = len(shape) == 1 and shape[0] > _SMALL
    side_by_side = _name(gradient) == "cat" and len(gradient.args) == 1 and len(gradient.users) == 1
    if not (given and large and side_by_side and [_name(node) for node in others] == ["split_with_sizes"]):
        return False
    pieces: Any = gradient.args[0]
    same = others[0].args[1:] == ([piece.meta["val"].numel() for piece in pieces],)
    used = {user.args[1] for user in others[0].users} == set(range(len(pieces)))
    returned: Any = update.graph.output_node().args[0]
    # Under two names, the next step would change both where it means one.
    once = len(update.users) == 1 and list(returned).count(update) == 1
    return same and used and once and not any(user.op == "output" for user in _uses(others[0]))


def _change_pieces(graph: fx.Graph, update: fx.Node) -> None:
    weights, rate, gradient = (node for node in update.args if isinstance(node, fx.Node))
    (split,) = (node for node in weights.users if node is not update)
    slices = {node.args[1]: node for node in split.users}
    pieces: Any = gradient.args[0]
    for i, piece in enumerate(pieces):
        _move_up(piece)
        order = {node: place for place, node in enumerate(graph.nodes)}
        with graph.inserting_after(max([piece, *_uses(slices[i])], key=order.__getitem__)):
            graph.call_function(torch.ops.aten.addcmul_.default, (slices[i], rate, piece), update.kwargs)
    update.replace_all_uses_with(weights)
    graph.erase_node(update)
    graph.erase_node(gradient)


def _uses(node: fx.Node) -> Iterator[fx.Node]:
    """Everything that reads a tensor, itself or by a view."""
    for user in node.users:
        yield user
        if _shows(user):
            yield from _uses(user)


def _move_up(node: fx.Node) -> None:
    """Put a view right behind what it shows."""
    source = node.args[0]
    if _shows(node) and isinstance(source, fx.Node):
        _move_up(source)
        source.append(node)


def _shows(node: fx.Node) -> bool:
    """Whether a node has no memory of its own, or may have none."""
    if isinstance(node.target, torch._ops.OpOverload):
        return _name(node) in _VIEWS or any(found.alias_info is not None for found in node.target._schema.returns)
    return _name(node) in _VIEWS | {"split_with_sizes", "select"} or node.target is operator.getitem


def _of_list(recorded: fx.GraphModule) -> fx.GraphModule:
    """The same operations with all arguments in a list."""
    graph = recorded.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_before(arguments[0]):
        tensors = graph.placeholder("tensors", list[Tensor])
    for i, node in enumerate(arguments):
        if node.users:
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.call_function(operator.getitem, (tensors, i)))
        graph.erase_node(node)
    recorded.recompile()
    return recorded


def _scripted(
    recorded: fx.GraphModule, like: list[Tensor], around: Callable[[Any], Callable[..., list[Tensor]]]
) -> torch.jit.ScriptModule | None:
    """The same operations one after the other without Python between them: faster, and threads do not wait for it.

    None where TorchScript does not know an operation, or for another device than a CPU.
    """
    if like[0].device.type != "cpu":
        return None
    for node in recorded.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket  # the name that TorchScript knows it by
    recorded.recompile()
    with warnings.catch_warnings():
        # What is to take its place (torch.compile) needs a C++ compiler and longer than most cells of such models take.
        warnings.filterwarnings("ignore", "`torch.jit")
        try:
            scripted: torch.jit.ScriptModule = torch.jit.script(around(recorded))
        except RuntimeError:
            return None
    return scripted


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _draws(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target.__name__ != "getitem" if callable(target) else True
    return torch.Tag.nondeterministic_seeded in target.tags


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
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
    given = [node for node in graph.nodes if node.op == "get_attr"]  # a number of the function's, as a tensor
    constants: dict[fx.Node, Tensor] = {node: getattr(recorded, node.target) for node in given}
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
        if node in given or all(user in constants for user in node.users):
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
