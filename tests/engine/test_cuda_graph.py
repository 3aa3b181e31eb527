"""Captured steps: one set of buffers into the other and back, with the bytes of eager.

A GPU's part is replaced here by a function that runs the same operations on the same buffers.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from bench.engine.backends import backends
from bench.engine.backends.backends import CudaGraph, Graph
from bench.engine.backends.cuda_graph import Captured, writing_into
from bench.engine.backends.recording import of_list, record
from bench.frozen_tensors import NOTHING_FROZEN
from tests.engine.problems import everything, run, toy


def again(work: Callable[[], None]) -> Callable[[], None]:
    """Stands in for `cuda_graph`."""
    work()
    return work


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = CudaGraph(again)
    capturing.devices = ("cpu",)
    monkeypatch.setattr(backends, "BACKENDS", (Graph(), capturing))
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    NOTHING_FROZEN.recorded.clear()


def momentum_step(tensors: list[Tensor]) -> list[Tensor]:
    """Weights, momentum, losses; gradients, a context that is the same for many steps, and a rate."""
    weights, momentum, loss, gradient, context, rate = tensors
    momentum = 0.5 * momentum + gradient + context
    return [torch.addcmul(weights, rate, momentum, value=-1.0), momentum, loss + gradient.sum(1)]


def recorded(function: Callable[[list[Tensor]], list[Tensor]], examples: list[Tensor]) -> fx.GraphModule:
    return of_list(record(function, examples))


def test_values_go_to_and_fro_between_buffers() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    state = [random(3, 4), random(3, 4), random(3)]
    context, rate = random(3, 4), torch.tensor(0.1)
    step = Captured(
        recorded(momentum_step, [*state, random(3, 4), context, rate]), [*state, *[context] * 2, rate], again
    )
    expected, found, places = list(state), list(state), set()
    for number in range(9):
        gradient = random(3, 4)
        if number == 3:  # the loop loads a client into a lane
            expected, found = ([t.index_copy(0, torch.tensor([1]), t[:1]) for t in ts] for ts in (expected, found))
        if number == 6:
            context[1] = 7.0
        expected = momentum_step([*expected, gradient, context, rate])
        found = step([*found, gradient, context, rate])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        places.add(found[0].data_ptr())
    assert len(places) == 2


def test_only_what_changed_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    state, context, rate = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2)], torch.ones(2, 3), torch.tensor(0.1)
    step = Captured(recorded(momentum_step, [*state, context, context, rate]), [*state, context, context, rate], again)
    copied: list[int] = []
    copy_ = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda self, other: (copied.append(len(copied)), copy_(self, other))[1])
    counts = []
    for _ in range(3):
        state = step([*state, torch.ones(2, 3), context, rate])
        counts.append(len(copied))
    context.add_(1)
    step([*state, torch.ones(2, 3), context, rate])
    counts.append(len(copied))
    assert counts == [6, 7, 8, 10]  # all; then gradients alone; at last the context, too


def test_outputs_are_written_where_they_should_be_without_another_copy() -> None:
    examples = [
        torch.randn(3, 4),
        torch.randn(3, 4),
        torch.randn(3),
        torch.randn(3, 4),
        torch.randn(3, 4),
        torch.tensor(0.1),
    ]
    into = writing_into(recorded(momentum_step, examples))
    assert not any("copy_" in str(node.target) for node in into.graph.nodes)
    targets = [torch.empty_like(t) for t in examples[:3]]
    into(examples, targets)
    assert all(torch.equal(a, b) for a, b in zip(targets, momentum_step(examples), strict=True))


def test_an_output_that_is_returned_twice_or_is_an_input_is_copied() -> None:
    def twice(tensors: list[Tensor]) -> list[Tensor]:
        total = tensors[0] + tensors[1]
        return [total, total, tensors[1]]

    examples = [torch.randn(2), torch.randn(2)]
    targets = [torch.empty(2) for _ in range(3)]
    writing_into(recorded(twice, examples))(examples, targets)
    assert all(torch.equal(a, b) for a, b in zip(targets, twice(examples), strict=True))


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize(
    "changes",
    [{}, *(pytest.param(one, marks=pytest.mark.long) for one in ({"model": "test_norm"}, {"participation": 0.5}))],
    ids=str,
)
@pytest.mark.parametrize("method", ["fedavg", *(pytest.param(one, marks=pytest.mark.long) for one in ("ditto", "scd"))])
def test_captured_cohorts_have_the_bytes_of_eager(
    method: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of unequal sizes come and go in the lanes; models are evaluated between."""
    found = toy(method, rounds=4, **changes)
    metrics = run(found, 4).metrics
    assert (found.engine.backend, found.engine.failed) == ("cudagraph", [])
    assert found.engine.calls["cudagraph"] > 0
    monkeypatch.setattr(backends, "_RECORD_AFTER", 10**9)
    NOTHING_FROZEN.recorded.clear()
    eager = toy(method, rounds=4, **changes)
    assert metrics == run(eager, 4).metrics
    assert all(torch.equal(t, everything(eager)[name]) for name, t in everything(found).items())
    NOTHING_FROZEN.recorded.clear()


def test_only_few_lanes_are_captured() -> None:
    takes = CudaGraph().takes
    assert takes([torch.empty(16, 3)], in_place=False)
    assert not takes([torch.empty(24, 3)], in_place=False)
    assert not takes([torch.empty(3)], in_place=True)
