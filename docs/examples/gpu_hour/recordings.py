"""What a recorded step of a cohort consists of: operations, copies among them, and bytes. No GPU is needed for it."""

import functools
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import cells
import torch
from measure import Found, Rows
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from bench.engine.backends.recording import _shows, tidy, writes
from bench.engine.recorded_steps import RecordedSteps

CLIENTS = 4  # few, so that any machine has memory for them; bytes are given for each lane
COPIES = {"_to_copy", "clone", "copy", "cat", "lane_weights"}


def recordings(device: str, tiny: bool) -> Rows:
    """Steps of FedAvg and SCD in bf16, on whole batches and on padded ones."""
    return {
        f"{method}, {'padded' if padded else 'whole'} batches": functools.partial(counts, tiny, method, padded)
        for method in ("fedavg", "scd")
        for padded in (False, True)
    }


def counts(tiny: bool, method: str, padded: bool) -> Found:
    """What the step of a method consists of."""
    step, examples = step_on_lanes(tiny, method, padded)
    with mock.patch("bench.tensors.on_gpu", return_value=True):
        return count(traced(step, examples, CLIENTS), CLIENTS)


def traced(step: Any, examples: list[Tensor], lanes: int) -> fx.GraphModule:
    """The recorded operations of a step on so many lanes; no number is computed."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        shapes = [(lanes, *t.shape[1:]) if t.dim() and len(t) == len(examples[0]) else t.shape for t in examples]
        fake = [torch.empty(shape, dtype=t.dtype) for shape, t in zip(shapes, examples, strict=True)]
        graph = make_fx(lambda *tensors: step(list(tensors)))(*fake)
        if any(writes(node) for node in graph.graph.nodes):
            graph = make_fx(functionalize(graph))(*fake)
        return tidy(graph)


def count(recorded: fx.GraphModule, lanes: int) -> Found:
    """Numbers of operations and of copies, and the megabytes that they read and write for each lane.

    A number that an operation reads twice counts once, and what lies in a view is counted where it is read. What a
    transform reads and writes within itself is not counted.
    """
    operations, size = Counter[str](), Counter[str]()
    for node in recorded.graph.nodes:
        if node.op in ("call_function", "call_method") and not _shows(node):
            name = name_of(node)
            operations[name] += 1
            size[name] += sum(read(source.meta.get("val")) for source in node.all_input_nodes)
            size[name] += sum(t.nbytes for t in tensors_in(node.meta.get("val")))
    megabytes = {name: n / lanes / 1e6 for name, n in size.most_common()}
    return {
        "operations": operations.total(),
        "copies": sum(operations[name] for name in COPIES),
        "mb_per_lane": sum(megabytes.values()),
        "mb_per_lane_of_copies": sum(megabytes.get(name, 0.0) for name in COPIES),
        "by_name": {name: {"calls": operations[name], "mb_per_lane": mb} for name, mb in megabytes.items()},
    }


def step_on_lanes(tiny: bool, method: str, padded: bool) -> tuple[Any, list[Tensor]]:
    """The step of a method in lanes, as a GPU has it, and tensors such as it gets."""
    on_lists = RecordedSteps.on_lists

    def of_batches(self: RecordedSteps, recipe: Any, nested: Any, **rest: Any) -> Any:
        return on_lists(self, replace(recipe, padded=padded), nested, **rest)

    changes: dict[str, Any] = {"clients": CLIENTS, "participation": 1.0, **({} if tiny else {"precision": "bf16"})}
    with (
        mock.patch.object(RecordedSteps, "on_lists", of_batches),
    ):
        return cells.first_step("cpu", tiny, method, **changes)


def name_of(node: fx.Node) -> str:
    """The name of a node's operation, without its overload."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.partition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a node's result."""
    return [t for t in (value if isinstance(value, list | tuple) else [value]) if isinstance(t, Tensor)]


def read(value: Any) -> int:
    """Bytes of the tensors that an operation gets; a dimension that repeats numbers (stride 0) is read once."""
    sizes = 0
    for tensor in tensors_in(value):
        numbers = tensor.element_size()
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            numbers *= size if stride else 1
        sizes += numbers
    return sizes
