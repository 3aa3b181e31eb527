"""Record a function of tensors as a graph of the tensor operations that it performs, without its Python code.

The graph has the same operations on the same shapes, so its bytes are the same. What changes no number is removed from
it: needless views, repeated operations, and constants.
"""

import copy
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from bench.engine.backends.loops import Function

_SMALL = 2**16  # numbers of a constant that is worth keeping
_VIEWS = {"view", "_unsafe_view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "alias", "detach"}
_METHODS = {"view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "split_with_sizes", "select", "gather"}
_METHODS |= {"bmm", "mm", "relu", "add", "sub", "mul", "div", "neg", "sum", "ne", "exp", "log", "sqrt", "pow"}
_SHAPE_ONLY = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}


def record(function: Function, examples: list[Tensor]) -> fx.GraphModule:
    """Return a function's operations as a graph with one argument per tensor, without what changes no number.

    Its attribute `owned` is that of `bench.engine.backends.loops.CohortLoop`.
    """
    recorded = make_fx(lambda *tensors: function(list(tensors)))(*examples)
    if any(writes(node) for node in recorded.graph.nodes):  # the backward pass of an FFT does
        recorded = make_fx(functionalize(recorded))(*examples)
    recorded = tidy(recorded)
    recorded.owned = _owned(recorded.graph.output_node().args[0])
    return recorded


def of_list(recorded: fx.GraphModule) -> fx.GraphModule:
    """A copy of the recorded operations that takes all its arguments in one list."""
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


def named_by_packet(recorded: fx.GraphModule) -> fx.GraphModule:
    """A copy whose operations have the names that TorchScript knows them by."""
    renamed = fx.GraphModule(recorded, copy.deepcopy(recorded.graph))
    for node in list(renamed.graph.nodes):
        if isinstance(node.target, torch._ops.OpOverload):
            if node.target._overloadname == "Scalar":
                node.args = tuple(_of_literal(renamed, node, a) if isinstance(a, bool) else a for a in node.args)
            node.target = node.target.overloadpacket
    renamed.recompile()
    renamed.owned = recorded.owned
    return renamed


def _of_literal(recorded: fx.GraphModule, node: fx.Node, value: bool) -> fx.Node:
    """True or False as a tensor; TorchScript would take it for a whole number, and `mask & True` for one, too."""
    name = f"literal_{node.name}"
    recorded.register_buffer(name, torch.tensor(value), persistent=False)
    with recorded.graph.inserting_before(node):
        return recorded.graph.get_attr(name)


def tidy(recorded: fx.GraphModule) -> fx.GraphModule:
    """Remove operations that change no number; a graph with in-place or random operations stays as it is."""
    graph = recorded.graph
    operations = [node for node in graph.nodes if node.op == "call_function"]
    if any(writes(node) or _draws(node) for node in operations):
        return recorded
    nodes: dict[Any, fx.Node] = {}
    for node in operations:
        original = _viewed(node) or nodes.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if original is not node:
            node.replace_all_uses_with(original)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        # Operations of ours take any layout, and in a graph without operations in place nobody changes the source.
        if _name(node) == "clone" and all(str(user.target).startswith("pfleague.") for user in node.users):
            node.replace_all_uses_with(node.args[0])
    _keep_constants(recorded)
    _pass_pieces(graph)
    graph.eliminate_dead_code()
    _call_methods(graph)
    recorded.recompile()
    return recorded


def update_in_place(recorded: fx.GraphModule) -> fx.GraphModule:
    """Update a large weight vector in place, one tensor at a time, as soon as that tensor's gradient is computed.

    Concatenating the gradients and writing new weights would need three more passes over memory.
    """
    for node in recorded.graph.nodes:
        if _name(node) == "addcmul" and _in_pieces(node):
            _change_pieces(recorded.graph, node)
    recorded.recompile()
    return recorded


def _in_pieces(update: fx.Node) -> bool:
    """Whether a node is `weights - rate * (gradients side by side)` of an argument used in these pieces only."""
    weights, rate, gradient = (node for node in update.args if isinstance(node, fx.Node))
    shape, readers = weights.meta["val"].shape, [node for node in weights.users if node is not update]
    of_arguments = weights.op == rate.op == "placeholder" and rate.meta["val"].dim() == 0
    large = len(shape) == 1 and shape[0] > _SMALL
    side_by_side = _name(gradient) == "cat" and len(gradient.args) == 1 and len(gradient.users) == 1
    if not (of_arguments and large and side_by_side and [_name(node) for node in readers] == ["split_with_sizes"]):
        return False
    pieces: Any = gradient.args[0]
    equal_sizes = readers[0].args[1:] == ([piece.meta["val"].numel() for piece in pieces],)
    used = {user.args[1] for user in readers[0].users} == set(range(len(pieces)))
    returned: Any = update.graph.output_node().args[0]
    # If the vector were returned twice, the next step would change both copies.
    once = len(update.users) == 1 and list(returned).count(update) == 1
    return equal_sizes and used and once and not any(user.op == "output" for user in _uses(readers[0]))


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
    """Nodes that read a tensor, itself or by a view."""
    for user in node.users:
        yield user
        if _shows(user):
            yield from _uses(user)


def _move_up(node: fx.Node) -> None:
    """Move a view directly behind the tensor that it is a view of."""
    source = node.args[0]
    if _shows(node) and isinstance(source, fx.Node):
        _move_up(source)
        source.append(node)


def _shows(node: fx.Node) -> bool:
    """Whether a node has no memory of its own, or may have none."""
    if isinstance(node.target, torch._ops.OpOverload):
        return _name(node) in _VIEWS or any(result.alias_info is not None for result in node.target._schema.returns)
    return _name(node) in _VIEWS | {"split_with_sizes", "select"} or node.target is operator.getitem


def _owned(results: Any) -> Any:
    """Whether each result has memory that no argument, no constant and no other result has."""
    memory = [_memory(node) for node in results]
    return [place is not None and memory.count(place) == 1 for place in memory]


def _memory(node: fx.Node) -> tuple[fx.Node, Any] | None:
    """The operation, and which of its results, that has the memory of a node; None for an argument or a constant."""
    result: Any = 0
    while _shows(node):
        source: Any = node.args[0]
        if node.target is operator.getitem:
            result = node.args[1] if not _shows(source) else 0  # all parts of a view have one memory
        node = source
    return (node, result) if node.op in ("call_function", "call_method") else None


def writes(node: fx.Node) -> bool:
    """Whether an operation changes its arguments in place."""
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
    """Find the earlier node that this one shows unchanged: after two transpositions, as a view of equal shape, or
    copied over all of another tensor, as running statistics are."""
    if _name(node) == "copy" and _layout(node.args[1]) == _layout(node):
        copied = node.args[1]
        assert isinstance(copied, fx.Node)
        return copied
    source = node
    while _name(source) in _VIEWS:
        earlier = source.args[0]
        assert isinstance(earlier, fx.Node)
        source = earlier
        if _layout(source) == _layout(node):
            return source
    return None


def _pass_pieces(graph: fx.Graph) -> None:
    """Give SGD in one pass (`bench/engine/lanes/sgd.py`) the gradients as they were computed, without copies."""
    for node in graph.nodes:
        if _name(node) != "lane_sgd":
            continue
        (gradient,) = node.args[1]
        # Of a loss and a regulariser it is a sum, which is the same in either order.
        terms = gradient.args if _name(gradient) == "add" and len(gradient.users) == 1 else [gradient]
        pieces: list[Any] = [term for term in terms if _is_side_by_side(term)]
        others = [term for term in terms if not _is_side_by_side(term)]
        if (
            len(pieces) == 1
            and not gradient.kwargs
            and all(isinstance(other, fx.Node) and _layout(other) == _layout(gradient) for other in others)
        ):
            node.update_arg(1, [_as_computed(piece) for piece in pieces[0].args[0]])
            node.update_arg(2, others)


def _is_side_by_side(value: Any) -> bool:
    """Whether a value consists of tensors side by side, which nobody else reads."""
    is_cat = isinstance(value, fx.Node) and _name(value) == "cat" and value.args[1:] in ((1,), (-1,))
    return is_cat and len(value.users) == 1


def _as_computed(piece: fx.Node) -> fx.Node:
    """Find the tensor of which a gradient `[lanes, d]` is a float32 copy in order, or else return the gradient."""
    shown: Any = piece.args[0] if _name(piece) in ("view", "_unsafe_view") else piece
    turned = _name(shown) == "transpose"
    copy: Any = shown.args[0] if turned else shown
    if _name(copy) not in ("_to_copy", "clone") or len(copy.users) > 1:
        return piece
    source: Any = copy.args[0]
    if turned:  # a linear layer's gradient is transposed, copied and transposed back
        if _name(source) != "transpose" or source.args[1:] != shown.args[1:]:
            return piece
        source = source.args[0]
    kinds = [node.meta["val"].dtype for node in (source, copy)]
    known = kinds[0] in (torch.bfloat16, torch.float16, torch.float32) and kinds[1] == torch.float32
    return source if known and len(source.meta["val"]) == len(piece.meta["val"]) else piece


def _layout(node: Any) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return node
    return value.shape, value.stride(), value.storage_offset(), value.dtype


def _keep_constants(recorded: fx.GraphModule) -> None:
    """Compute now, once, the values that depend on no input, and keep them on the device of the inputs.

    Those of another device are computed there, as they are without a recording, however large they are.
    """
    graph = recorded.graph
    device = next(node.meta["val"].device for node in graph.nodes if node.op == "placeholder")
    attributes = [node for node in graph.nodes if node.op == "get_attr"]  # a number of the function's, as a tensor
    constants: dict[fx.Node, Tensor] = {node: getattr(recorded, node.target) for node in attributes}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), Tensor):
            continue
        shape_only, sources = _name(node) in _SHAPE_ONLY, node.all_input_nodes
        if not all(shape_only or n in constants for n in sources):
            continue
        devices = {node.meta["val"].device, *(constants[n].device for n in sources if n in constants)}
        if node.meta["val"].numel() > _SMALL and devices == {device}:
            continue
        inputs = {n: _empty(n.meta["val"]) if shape_only else constants[n] for n in sources}
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), inputs.__getitem__)
        constants[node] = node.target(*args, **kwargs)
    for node, value in constants.items():
        if node in attributes:
            setattr(recorded, str(node.target), value.to(device))
            continue
        if all(user in constants for user in node.users):
            continue
        name = f"constant_{node.name}"
        recorded.register_buffer(name, value.to(device), persistent=False)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))


def _call_methods(graph: fx.Graph) -> None:
    """Call the tensor's method instead: the same operation, two microseconds faster because it needs no Python code."""
    for node in graph.nodes:
        name = _name(node) if node.op == "call_function" else ""
        if name in _METHODS and isinstance(node.args[0], fx.Node):
            node.op, node.target = "call_method", name


def _empty(like: Tensor) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
