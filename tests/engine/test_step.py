"""What a training step consists of: it reads no number on the host, and it makes few passes over memory."""

import runpy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from bench import model_call, tensors
from bench.data import Dataset
from bench.engine.backends.backends import Recorded
from bench.engine.backends.recording import of_list, record
from bench.engine.recorded_steps import RecordedSteps
from bench.engine.step import Slices
from bench.federation.federation import Federation
from bench.method import cross_entropy
from bench.model_call import Arithmetic
from bench.settings import Settings
from tests.conftest import ROOT
from tests.engine.problems import EVERY_METHOD, toy, toy_partition

COUNTER = runpy.run_path(str(ROOT / "docs" / "examples" / "gpu_hour"))["recordings"]


def run_on_shapes_too(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Run every step once more on fake tensors, which have shapes but no numbers."""
    seen: list[Recorded] = []
    run = Recorded.run

    def noted(self: Recorded, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        found = run(self, like, calls, *args)
        if self not in seen:
            seen.append(self)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                self._function([mode.from_tensor(t.clone()) for t in like])
        return found

    monkeypatch.setattr(Recorded, "run", noted)
    return seen


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_slices_are_put_where_they_were_taken(trained: list[bool]) -> None:
    """However many there are; the weights between them stay."""
    changes = np.flatnonzero(np.diff([False, *trained, False])).tolist()
    slices = Slices(tuple(zip(changes[::2], changes[1::2], strict=True)), len(trained))
    weights = torch.arange(len(trained), dtype=torch.float64)
    assert slices.take(weights).tolist() == [float(i) for i, one in enumerate(trained) if one]
    assert torch.equal(slices.put(weights, slices.take(weights)), weights)
    moved = slices.put(weights, slices.take(weights) + 100)
    assert moved.tolist() == [i + 100.0 * one for i, one in enumerate(trained)]


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_no_step_and_no_look_reads_a_number(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, reading a number would wait for all operations under way."""
    seen = run_on_shapes_too(monkeypatch)
    federation = toy(method)
    federation.advance()
    federation.evaluate()
    assert seen


def reading(model: Any, values: Any, batch: Any, ctx: Any) -> Tensor:
    """A loss that reads a number."""
    loss: Tensor = cross_entropy(model, values, batch, ctx)
    return loss * loss.detach().item()


def test_a_loss_that_reads_a_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.fedavg.cross_entropy", reading)
    run_on_shapes_too(monkeypatch)
    with pytest.raises(DataDependentOutputException):
        toy("fedavg", executor="sequential").advance()


class Captured(BaseException):
    """Carries a cohort's step and example tensors out of the engine; a BaseException, so that the engine does not
    handle it."""


def cohort_step(method: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Any, list[Tensor]]:
    """The step of two clients with batches of ten, of a ResNet-18 unless the settings say otherwise, as on a GPU; in
    the precision of the settings."""

    def captured(self: Recorded, like: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        raise Captured(self._function, like)

    monkeypatch.setattr(Recorded, "run", captured)
    monkeypatch.setattr(model_call, "_templates", model_call._Templates())
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: True)
    pictures, labels = np.zeros((40, 3, 32, 32), np.uint8), np.arange(40) % 10
    data = Dataset("pictures", pictures, labels, 20, 10, (0.5,) * 3, (0.5,) * 3, "")
    settings = {"model": "resnet18", "momentum": 0.9, "batch_size": 10, **settings}
    chosen = Settings(method=method, clients=2, **settings)
    federation = Federation(
        chosen, dataset=data, partition=toy_partition(data, [10, 10]), public=None, executor="cohort"
    )
    federation.engine._preparer._arithmetic = Arithmetic(chosen.precision)
    with pytest.raises(Captured) as found:
        federation.advance()
    return found.value.args


@pytest.mark.long
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("method", "precision", "operations", "megabytes"),
    [("fedavg", "bf16", 153, 513), ("fedavg", "fp32", 148, 801), ("scd", "bf16", 165, 782)],
)
def test_a_recorded_step_has_each_operation_once_and_moves_no_more_than_now(
    method: str, precision: str, operations: int, megabytes: float, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 64 lanes; megabytes are those of a lane. ResNet-18 has twenty convolutions; the gradient with respect to the
    input of the first one is not needed. With PyTorch's convolutions, BatchNorm and momentum, FedAvg's step in float32
    had 370 operations and 1,470 MB. Batches with padding take no more."""
    on_lists = RecordedSteps.on_lists

    def of_batches(self: RecordedSteps, recipe: Any, nested: Any, **rest: Any) -> Any:
        return on_lists(self, replace(recipe, padded=padded), nested, **rest)

    monkeypatch.setattr(RecordedSteps, "on_lists", of_batches)
    found = COUNTER.count(COUNTER.traced(*cohort_step(method, monkeypatch, precision=precision), 64), 64)
    assert found["operations"] <= operations
    assert found["mb_per_lane"] <= megabytes
    assert {name: of["calls"] for name, of in found["by_name"].items() if name.startswith("lane_")} == {
        "lane_convolution": 20,
        "lane_convolution_of_input": 19,
        "lane_convolution_of_weight": 20,
        "lane_norm_relu": 20,
        "lane_norm_relu_backward": 20,
        "lane_sgd": 1,
        "lane_weights": 20,
    }


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "scd"])
@pytest.mark.parametrize("options", [{}, {"grad_clip": 1.0}, {"momentum": 0.0, "weight_decay": 0.01}], ids=str)
def test_a_recorded_step_passes_pieces_and_has_eager_s_bytes(
    options: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient's length is needed before it can be clipped, so that the copy side by side remains. That of SCD's
    divergence is passed beside the pieces."""
    step, like = cohort_step(method, monkeypatch, precision="bf16", model="cnn", **options)
    right = step([t.clone() for t in like])
    graph = record(step, [t.flip(0) if t.dim() else t for t in like])
    (node,) = (node for node in graph.graph.nodes if str(node.target) == "pfleague.lane_sgd.default")
    kinds = [piece.meta["val"].dtype for piece in node.args[1]]
    assert kinds == ([torch.float32] if "grad_clip" in options else [torch.bfloat16] * 8)
    assert len(node.args[2]) == (method == "scd" and "grad_clip" not in options)
    assert all(map(torch.equal, of_list(graph)(like), right))
