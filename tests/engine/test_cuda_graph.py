"""Captured steps: one set of buffers into the other and back, with the bytes of eager, on a simulated `torch.cuda`."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from bench.engine.backends import backends, cuda_graph
from bench.engine.backends.backends import CudaGraph, Graph, Recorded
from bench.engine.backends.cuda_graph import Captured, on_other_devices, writing_into
from bench.engine.backends.recording import of_list, record
from bench.tensors import NOTHING_FROZEN
from tests.engine.problems import METHOD_NAMES, everything, run, toy
from tests.engine.simulated_cuda import SimulatedCuda


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    of_process = cuda_graph._side_stream.cache_clear, cuda_graph._shared_memory.cache_clear
    with SimulatedCuda() as simulated:
        monkeypatch.setattr(cuda_graph, "cuda", simulated)
        for forget in of_process:
            forget()
        yield simulated
    for forget in of_process:
        forget()


@pytest.fixture
def captured(device: SimulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = CudaGraph()
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


@pytest.mark.usefixtures("device")
def test_values_go_to_and_fro_between_buffers() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    state = [random(3, 4), random(3, 4), random(3)]
    context, rate = random(3, 4), torch.tensor(0.1)
    step = Captured(recorded(momentum_step, [*state, random(3, 4), context, rate]), [*state, *[context] * 2, rate])
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


@pytest.mark.usefixtures("device")
def test_only_what_changed_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    state, context, rate = [torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2)], torch.ones(2, 3), torch.tensor(0.1)
    step = Captured(recorded(momentum_step, [*state, context, context, rate]), [*state, context, context, rate])
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
    examples = [*torch.randn(2, 3, 4), torch.randn(3), *torch.randn(2, 3, 4), torch.tensor(0.1)]
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
    for _ in range(3):
        found.advance()
        gc.collect()  # what nobody holds is gone at some time, and not only at the end
    metrics = run(found, 1).metrics
    assert (found.engine.backend, found.engine.failed) == ("cudagraph", [])
    assert found.engine.calls["cudagraph"] > 0
    monkeypatch.setattr(backends, "_RECORD_AFTER", 10**9)
    NOTHING_FROZEN.recorded.clear()
    eager = toy(method, rounds=4, **changes)
    assert metrics == run(eager, 4).metrics
    assert all(torch.equal(t, everything(eager)[name]) for name, t in everything(found).items())
    NOTHING_FROZEN.recorded.clear()


def with_constants(tensors: list[Tensor]) -> list[Tensor]:
    """A step that reads a table and a single number of its own."""
    table, number = torch.arange(8.0).view(2, 4), torch.tensor(3.0)
    return [torch.where(tensors[0] > number, 0.0, tensors[0] * table)]


@pytest.mark.usefixtures("device")
def test_what_a_captured_step_reads_stays_while_it_lives() -> None:
    """The graph holds addresses only: here, constants of a recording that nobody else holds."""
    x = torch.randn(2, 4)
    step = Captured(recorded(with_constants, [x]), [x])
    gc.collect()
    for _ in range(3):
        assert torch.equal(step([x])[0], with_constants([x])[0])


def test_a_capture_is_possible_after_the_last_one_is_gone(device: SimulatedCuda) -> None:
    """And all captures have one pool, so that their memory does not add up."""
    for number in (2, 4):
        Captured(recorded(with_constants, [torch.ones(2, 4)]), [torch.ones(2, 4)])
        gc.collect()
        assert device.captures == number
    assert len(device.holders) == 1


def test_a_capture_that_fails_leaves_the_process_as_it_was(device: SimulatedCuda) -> None:
    stream, x = device.current_stream(), torch.ones(3)
    with pytest.raises(RuntimeError, match="not permitted"):
        cuda_graph.cuda_graph(lambda: x.add_(float(x.sum())))
    assert device.current_stream() is stream
    device.draw()
    again = cuda_graph.cuda_graph(lambda: x.fill_(7.0))
    x.zero_()
    again()
    assert x.tolist() == [7.0] * 3


def test_a_graph_s_memory_is_not_read_by_anybody_else(device: SimulatedCuda) -> None:
    """The simulated device refuses it: the next graph of the pool would write there."""
    kept = []
    with pytest.raises(RuntimeError, match="outlives"):
        cuda_graph.cuda_graph(lambda: kept.append(torch.ones(3) + 1))


def test_a_stream_waits_for_another_before_it_reads(device: SimulatedCuda) -> None:
    side, x = device.Stream(), torch.ones(3)
    with pytest.raises(RuntimeError, match="has not waited"), device.stream(side):
        x.add_(1)
    side.wait_stream(device.current_stream())


def test_a_step_that_computes_elsewhere_is_not_captured() -> None:
    step = recorded(with_constants, [torch.ones(2, 4)])
    constant = next(node for node in step.graph.nodes if node.op == "get_attr")
    setattr(step, constant.target, getattr(step, constant.target).to("meta"))
    with pytest.raises(ValueError, match=rf"another device than its own \({constant.name}\)"):
        Captured(step, [torch.ones(2, 4)])


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in ("ditto", "scd") else [pytest.mark.long]) for m in METHOD_NAMES]
)
def test_all_that_a_recorded_step_reads_lies_on_its_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on tensors of a device without numbers; a GPU copies nothing from the processor in a captured graph."""
    seen: list[tuple[Any, list[Tensor]]] = []

    def noted(self: Recorded, examples: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        seen.append((self._function, examples))
        return self._eager.run(*args)

    monkeypatch.setattr(Recorded, "run", noted)
    run(toy(method), 1)
    for function, examples in {tuple(t.shape for t in examples): (f, examples) for f, examples in seen}.values():
        far = [example.to("meta") for example in examples]
        assert on_other_devices(record(function, far), far[0].device) == []


def test_a_large_constant_of_another_device_is_kept_on_the_step_s() -> None:
    def of_places(tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0][torch.arange(2**17) % 4]]

    far = [torch.ones(4, device="meta")]
    assert on_other_devices(record(of_places, far), far[0].device) == []


def test_only_few_lanes_are_captured() -> None:
    takes = CudaGraph().takes
    assert takes([torch.empty(16, 3)], in_place=False)
    assert not takes([torch.empty(24, 3)], in_place=False)
    assert not takes([torch.empty(3)], in_place=True)
