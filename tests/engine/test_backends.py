"""If a backend fails, a simpler one does the work: with the same bytes, one notice, and its name in the notice."""

import math
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.engine.anomalies import Diverged
from bench.engine.backends import backends
from bench.engine.backends.backends import BACKENDS, Graph, Recorded, WrongRecordingError, fastest
from bench.engine.backends.loops import ClientLoop, CohortLoop
from bench.engine.recorded_steps import GraphCache
from bench.method import cross_entropy
from bench.tensors import NOTHING_FROZEN
from tests.broken_torchscript import asked
from tests.engine.problems import everything, run, toy

OUT_OF_ORDER = ["torchscript"] if asked() else []


def _fail(*_: object, **__: object) -> None:
    raise KeyError("first line\nsecond line")  # not a RuntimeError


def _no_torchscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.jit", None)


def _no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.jit, "script", _fail)


def _no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bench.engine.backends.recording", None)


def _no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.engine.backends.recording.make_fx", _fail)


def _other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    make = backends.Graph.make

    def wrong(self: backends.Graph, step: Any, *args: Any, **more: Any) -> Any:
        return make(self, lambda tensors: [t + 1 for t in step(tensors)], *args, **more)

    monkeypatch.setattr(backends.Graph, "make", wrong)


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str, str]] = {
    "torchscript at import": (_no_torchscript, "torchscript", "graph", "ModuleNotFoundError: import of torch.jit"),
    "torchscript at recording": (_no_script, "torchscript", "graph", "KeyError: 'first line"),
    "graph at import": (_no_tracer, "graph", "eager", "ModuleNotFoundError: import of bench.engine.backends.recording"),
    "graph at recording": (_no_graph, "graph", "eager", "KeyError: 'first line"),
    "graph with other bytes": (_other_bytes, "graph", "eager", "ValueError: its bytes are not eager's"),
}


@pytest.fixture(autouse=True)
def _nothing_recorded() -> Iterator[None]:
    """Forget the recordings of looks at models, which are kept for the whole process."""
    NOTHING_FROZEN.recorded.clear()
    yield
    NOTHING_FROZEN.recorded.clear()


@pytest.mark.long
@pytest.mark.parametrize("executor", ["cohort", "sequential"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_backend_that_fails_leaves_the_work_to_a_simpler_one(
    broken: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, failed, left, reason = BROKEN[broken]
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    right = toy("ditto", executor=executor, rounds=3)
    expected, weights = run(right, 3), everything(right)
    assert right.engine.backend == "torchscript"
    assert right.warnings == []
    NOTHING_FROZEN.recorded.clear()
    damage(monkeypatch)
    federation = toy("ditto", executor=executor, rounds=3)
    found = run(federation, 3)
    assert found.metrics == expected.metrics
    assert all(torch.equal(t, weights[name]) for name, t in everything(federation).items())
    assert federation.engine.backend == left
    assert (right.engine.steps_are, federation.engine.steps_are) == ("as planned", "fallen back")
    (notice,) = federation.warnings
    assert notice.startswith(f"the backend {failed} failed and {left} takes its place: {reason}")
    made = {one.name for step in federation.engine._trainer.steps.used for one in step._recorded.values()}
    assert left in made
    assert failed not in made


def test_the_fastest_backend_is_the_last_before_a_failure() -> None:
    assert [one.name for one in BACKENDS] == ["graph", "torchscript", "cudagraph"]
    assert (fastest("cpu"), fastest("cpu", ["torchscript"])) == ("torchscript", "graph")
    assert (fastest("cuda"), fastest("cuda", ["cudagraph"])) == ("cudagraph", "graph")
    assert fastest("cpu", ["graph"]) == fastest("elsewhere") == "eager"


def test_a_cell_does_not_count_the_steps_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of one method share their recordings."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    shared = GraphCache()
    first = toy("fedavg", executor="cohort", rounds=3, recordings=shared)
    run(first, 3)
    calls = first.engine.calls
    second = toy("fedavg", executor="cohort", rounds=3, recordings=shared)
    run(second, 3)
    assert calls["eager"] > 0
    assert second.engine.calls == {first.engine.backend: calls.total()}


@pytest.mark.parametrize("read", [float, Tensor.item, Tensor.tolist, Tensor.numpy])
def test_a_number_that_python_reads_is_no_part_of_a_recording(read: Callable[[Tensor], Any]) -> None:
    """A later cell may call the step with another one, such as its own hyperparameter."""
    step = Recorded(lambda tensors: [tensors[0] * torch.as_tensor(read(tensors[1]))], ClientLoop)
    examples = [torch.ones(3), torch.tensor(0.7)]
    assert step._record(examples).name == "eager"
    assert set(step.failed) == {"graph"}
    right = Recorded(lambda tensors: [tensors[0] * tensors[1]], ClientLoop)
    assert right._record(examples).name == fastest("cpu", OUT_OF_ORDER)


@pytest.mark.parametrize("literal", [True, False])
def test_a_mask_and_a_literal_are_a_mask_on_every_backend(literal: bool) -> None:
    step = Recorded(lambda t: [torch.where((t[0] > 0) & literal, t[0], t[1]), t[1]], ClientLoop)
    assert step._record([torch.randn(5), torch.randn(5)]).name == fastest("cpu", OUT_OF_ORDER)
    assert list(step.failed) == OUT_OF_ORDER


@pytest.mark.parametrize(("device", "unrecorded"), [("cpu", 100), ("cuda", 5)])
def test_on_a_gpu_recording_pays_after_fewer_calls(
    device: str, unrecorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Recorded(lambda tensors: tensors, CohortLoop)
    monkeypatch.setattr(step, "_record", lambda *_: step._eager)
    there: Any = SimpleNamespace(device=torch.device(device))
    runs = [step._begin_unrecorded(0, [there], 1, ()) for _ in range(unrecorded)]
    for _ in runs:
        step._end_unrecorded()
    assert runs == [True] * unrecorded
    assert not step._begin_unrecorded(0, [there], 1, ())


STRENGTH = 1.0


def drifting(model: Any, values: Any, batch: Any, ctx: Any) -> Tensor:
    """A loss with a number of Python's, which a recording keeps as it was."""
    return STRENGTH * cross_entropy(model, values, batch, ctx)


@pytest.fixture
def drifts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give FedAvg the loss `drifting`, whose steps are recorded early; a call changes its number."""
    monkeypatch.setattr("methods.fedavg.cross_entropy", drifting)
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    monkeypatch.setitem(globals(), "STRENGTH", 1.0)
    return lambda: monkeypatch.setitem(globals(), "STRENGTH", 1.01)


@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_a_recording_that_has_become_wrong_stops_the_cell_at_its_evaluation(
    executor: str, drifts: Callable[[], None]
) -> None:
    federation = toy("fedavg", executor=executor, rounds=6)
    for _ in range(3):
        federation.advance()
    drifts()
    with pytest.raises(WrongRecordingError, match="has come to compute other numbers"):
        run(federation, 2)


def test_each_recording_is_looked_at_after_an_evaluation_and_once_more_at_a_checkpoint(
    drifts: Callable[[], None],
) -> None:
    federation = toy("fedavg", rounds=6)
    run(federation, 3)
    drifts()
    run(federation, 2)
    with pytest.raises(WrongRecordingError):
        federation.state()


def test_what_a_wrong_recording_blows_up_has_not_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a constant of a CUDA graph was freed, and others write there."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    federation = toy("fedavg", rounds=6)
    run(federation, 3)
    loops = [built.run for step in federation.engine._trainer.steps.used for built in step._recorded.values()]
    constants = [constant for loop in loops for constant in loop.buffers() if constant.is_floating_point()]
    assert constants
    for constant in constants:
        constant.fill_(math.nan)
    with pytest.raises(WrongRecordingError):
        federation.advance()


def test_class_statistics_of_a_wrong_recording_have_not_diverged(
    drifts: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = toy("fedavg", rounds=6)
    run(federation, 3)
    drifts()

    def diverge() -> None:
        raise Diverged("the class statistics of client 0 are not finite", owner=0)

    monkeypatch.setattr(federation, "_everyone", diverge)
    with pytest.raises(WrongRecordingError):
        federation.advance()


def out_of_memory(*_: Any, **__: Any) -> Any:
    """A device without room."""
    raise torch.OutOfMemoryError("no room")


def test_memory_that_runs_out_while_a_step_is_recorded_is_no_fault_of_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A smaller cohort may have room."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 0)
    monkeypatch.setattr(Graph, "make", out_of_memory)
    recorded, like = Recorded(lambda tensors: [tensors[0] + 1], ClientLoop), [torch.zeros(2)]
    with pytest.raises(torch.OutOfMemoryError):
        recorded.run(like, 2, [torch.zeros(2)], [torch.zeros(2, 1)], [])


def test_a_cell_goes_on_where_there_is_no_room_to_compare_its_recordings(
    drifts: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = toy("fedavg", rounds=6)
    federation.advance()
    monkeypatch.setattr(Recorded, "check", out_of_memory)
    federation.evaluate()
    assert any("was not compared" in warning for warning in federation.warnings)
