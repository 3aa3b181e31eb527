"""Record a function of tensors as a graph of the tensor operations that it performs, without its Python code.

The graph has the same operations on the same shapes, so its bytes are the same.
"""

import copy
import operator

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from bench.engine.backends.loops import Function
from bench.engine.backends.simplify import tidy, writes


def record(function: Function, examples: list[Tensor]) -> fx.GraphModule:
    """Return a function's operations as a graph with one argument per tensor, without what changes no number."""
    recorded = make_fx(lambda *tensors: function(list(tensors)))(*examples)
    if any(writes(node) for node in recorded.graph.nodes):  # the backward pass of an FFT does
        recorded = make_fx(functionalize(recorded))(*examples)
    return tidy(recorded)


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
    return renamed


def _of_literal(recorded: fx.GraphModule, node: fx.Node, value: bool) -> fx.Node:
    """True or False as a tensor; TorchScript would take it for a whole number, and `mask & True` for one, too."""
    name = f"literal_{node.name}"
    recorded.register_buffer(name, torch.tensor(value), persistent=False)
    with recorded.graph.inserting_before(node):
        return recorded.graph.get_attr(name)
