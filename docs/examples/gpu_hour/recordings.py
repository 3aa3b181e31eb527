"""What a recorded step of a cohort consists of: operations, copies among them, and bytes. No GPU is needed for it."""

import functools
from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import mock

import cells
from measure import Found, Rows
from torch import Tensor, fx
from torch._ops import OpOverload

from bench.engine.backends.recording import record
from bench.engine.recorded_steps import RecordedSteps

CLIENTS = 4  # few, so that a ResNet-18 is recorded on any machine; bytes are given for each lane
VIEWS = {"view", "_unsafe_view", "expand", "transpose", "permute", "squeeze", "unsqueeze", "alias", "detach", "select",
         "slice", "split_with_sizes", "getitem"}  # fmt: skip
COPIES = {"_to_copy", "clone", "copy", "cat"}


def recordings(device: str, tiny: bool) -> Rows:
    """Steps of FedAvg and SCD with lane kernels in bf16, on whole batches and on padded ones."""
    return {
        f"{method}, {'padded' if padded else 'whole'} batches": functools.partial(counts, tiny, method, padded)
        for method in ("fedavg", "scd")
        for padded in (False, True)
    }


def counts(tiny: bool, method: str, padded: bool) -> Found:
    """Numbers of operations and of copies, and the megabytes that they read and write for each lane.

    A number that an operation reads twice counts once, and what lies in a view is counted where it is read.
    """
    step, examples = step_on_lanes(tiny, method, padded)
    with mock.patch("bench.tensors.on_gpu", return_value=True):
        graph = record(step, [t.clone() for t in examples]).graph
    operations, size = Counter[str](), Counter[str]()
    for node in graph.nodes:
        if node.op in ("call_function", "call_method") and (name := name_of(node)) not in VIEWS:
            operations[name] += 1
            size[name] += sum(read(source.meta.get("val")) for source in node.all_input_nodes)
            size[name] += sum(t.nbytes for t in tensors_in(node.meta.get("val")))
    megabytes = {name: n / len(examples[0]) / 1e6 for name, n in size.most_common()}
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
        mock.patch("bench.federation.cell.check_lane_kernels"),  # which a processor refuses
    ):
        return cells.first_step("cpu", tiny, method, lane_kernels=True, **changes)


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
