"""Steps captured as CUDA graphs, which a GPU runs without Python between the operations.

A captured graph reads and writes fixed memory: it holds addresses, and keeps nothing alive. So a step is captured
twice, from one set of buffers into another and back: the values in the lanes go to and fro, and none of them is copied
between two steps.
"""

import contextlib
import copy
import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, cuda, fx, nn

WARM_UP = 3  # calls before a capture, in which libraries choose their algorithms and reserve their memory


def cuda_graph(work: Callable[[], Any]) -> Callable[[], None]:
    """Capture what `work` does on a GPU, and return a function that does it again.

    A capture that fails leaves stream, generator and memory as they were before it; PyTorch leaves all three in the
    middle of a capture.
    """
    device, before = cuda.current_device(), cuda.current_stream()
    generator = cuda.default_generators[device]
    spare = generator.clone_state()
    side, pool, graph = _side_stream(), _shared_memory(), cuda.CUDAGraph()
    try:
        side.wait_stream(before)
        with cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        with cuda.graph(graph, pool=pool.id, stream=side):  # type: ignore[arg-type]  # 2.11 takes the id only
            work()
        before.wait_stream(side)
    except BaseException:
        cuda.set_stream(before)
        generator.graphsafe_set_state(spare)
        with contextlib.suppress(RuntimeError):  # it may have failed before the pool was opened, or after it was closed
            cuda.memory._cuda_endAllocateToPool(device, pool.id)  # type: ignore[attr-defined]
        _FAILED.append(graph)
        raise
    return graph.replay


_FAILED: list[cuda.CUDAGraph] = []
"""Graphs whose capture failed. PyTorch's allocator of pinned memory asks them at each allocation, so they must stay."""


@functools.cache
def _side_stream() -> cuda.Stream:
    """Return the stream of all warm-ups and captures: cuBLAS keeps a workspace for each stream as long as the process
    lives, so the one that a capture reads is neither freed nor in the captures' pool."""
    return cuda.Stream()  # type: ignore[no-untyped-call]


@functools.cache
def _shared_memory() -> cuda.MemPool:
    """Return the memory of all captures' intermediate values. Graphs never run at the same time, so they share it.

    The pool is an object and not only a handle: PyTorch refuses to capture into a pool that nothing holds, as after the
    last graph of a cell is gone.
    """
    return cuda.MemPool()


class Captured(nn.Module):
    """A step on a list of tensors that runs on buffers of its own.

    If all outputs have the shapes of the first inputs, as those of a training step, they are buffers that the next call
    takes without a copy. They hold their values until the call after the next one. Other outputs are copies. So all are
    `owned` (`bench/engine/backends/loops.py`).

    Args:
        step: the recorded operations; one argument, a list of tensors.
        examples: tensors of the shapes that the step gets.

    Raises:
        ValueError: the step reads or computes a tensor on another device.
    """

    def __init__(self, step: fx.GraphModule, examples: list[Tensor]) -> None:
        super().__init__()
        if names := on_other_devices(step, examples[0].device):
            raise ValueError(f"it computes on another device than its own ({', '.join(names)})")
        inputs = [t.clone() for t in examples]
        outputs = [t.clone() for t in step(inputs)]
        self.owned = [True] * len(outputs)
        self._returned = len(outputs) if _fit(outputs, inputs) else 0
        state, self._others = inputs[: self._returned], inputs[self._returned :]
        self._state = [state, outputs]
        self._seen: list[tuple[weakref.ref[Tensor], int] | None] = [None] * len(self._others)
        self._into = writing_into(step)  # kept, as its constants are read by every replay
        pairs = ((0, 1), (1, 0)) if self._returned else ((0, 1),)
        self._replay = [cuda_graph(functools.partial(self._work, source, target)) for source, target in pairs]

    def _work(self, source: int, target: int) -> None:
        self._into(self._state[source] + self._others, self._state[target])

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """The outputs of the step."""
        returned = tensors[: self._returned]
        source = int(any(a is b for a, b in zip(returned, self._state[1], strict=False)))
        for tensor, buffer in zip(returned, self._state[source], strict=False):
            if tensor is not buffer:
                buffer.copy_(tensor)
        for i, tensor in enumerate(tensors[self._returned :]):
            # Nothing says whether an inference tensor has changed.
            version = -1 if tensor.is_inference() else tensor._version
            seen = self._seen[i]
            if version < 0 or seen is None or seen[0]() is not tensor or seen[1] != version:
                self._others[i].copy_(tensor)
                self._seen[i] = (weakref.ref(tensor), version)
        self._replay[source]()
        target = self._state[1 - source]
        return list(target) if self._returned else [t.clone() for t in target]


def _fit(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    pairs = zip(outputs, inputs, strict=False)
    return len(outputs) <= len(inputs) and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def on_other_devices(step: fx.GraphModule, device: torch.device) -> list[str]:
    """Names of the constants and results of a step that do not lie on a device."""
    nodes = step.graph.nodes
    values = [(n.name, getattr(step, n.target) if n.op == "get_attr" else n.meta.get("val")) for n in nodes]
    return [name for name, value in values if isinstance(value, Tensor) and value.device != device]


def writing_into(step: fx.GraphModule) -> fx.GraphModule:
    """A copy of the step with a second argument: the tensors that its outputs are written to.

    Where an output's operation can write to a given tensor, it does; else the output is copied.
    """
    copied = fx.GraphModule(step, copy.deepcopy(step.graph))
    graph = copied.graph
    last = graph.output_node()
    outputs: Any = last.args[0]
    (tensors,) = (node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(tensors):
        targets = graph.placeholder("targets", list[Tensor])
    for i, node in enumerate(outputs):
        once = outputs.count(node) == 1 and i == outputs.index(node)
        operation = _with_out(node) if once else None
        with graph.inserting_before(node if operation else last):
            target = graph.call_function(operator.getitem, (targets, i))
            if operation is None:
                graph.call_function(torch.ops.aten.copy_.default, (target, node))
                continue
        node.op, node.target, node.kwargs = "call_function", operation, {**node.kwargs, "out": target}
    last.args = ([],)
    copied.recompile()
    return copied


def _with_out(node: fx.Node) -> Any:
    """Find the form of a node's operation that writes its result to `out`, if there is one."""
    if node.op == "call_method" and node.target in ("add", "sub", "mul", "div"):
        return getattr(torch, node.target)
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return None
    signature = [(a.name, str(a.type)) for a in node.target._schema.arguments]
    packet = node.target.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        *arguments, written = overload._schema.arguments or [None]
        if written is not None and written.name == "out" and [(a.name, str(a.type)) for a in arguments] == signature:
            return overload
    return None
