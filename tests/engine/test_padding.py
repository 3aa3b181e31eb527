"""Short batches of unequal sizes train together, as on a GPU; BatchNorm's statistics are those of the real samples
only."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from bench import tensors
from bench.engine.backends.backends import Recorded
from tests.engine.problems import EVERY_METHOD, ONE_OF_A_KIND, assert_same, everything, needed, run, toy
from tests.engine.second_device import NAME, SecondDevice, There

SEVERAL_STREAMS = "comet"  # Per-FedAvg has several in its rounds, and one where it fine-tunes
SIZES = [13, 7, 1, 0, 10, 6]  # in batches of four; the short batches have three, two and two samples


def padded(federation: Any) -> list[bool]:
    """For each step function of a federation's trainings, whether its batches were padded."""
    return [recipe.padded for recipe, _ in federation.engine._trainer.steps.by_recipe]


def scores(federation: Any) -> tuple[list[float], Any]:
    """The scores after two rounds, and how many samples of each client are right."""
    evaluation = run(federation, 2)
    return [row["value"] for row in evaluation.metrics], evaluation.clients


@pytest.mark.long
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_trains_with_padding_as_without(method: str) -> None:
    """The CPU pads nothing, neither in cohorts nor (tried with a method of each kind; `test_agreement` has all) one
    client after the other. On the device, only methods with several streams of batches or composed models are not
    padded, nor those with adapters, under which the norm is frozen."""
    executors = ("cohort", "sequential") if method in ONE_OF_A_KIND else ("cohort",)
    here = [toy(method, model="test_norm", sizes=SIZES, executor=executor) for executor in executors]
    expected = [scores(federation) for federation in here]
    with SecondDevice():
        there = toy(method, model="test_norm", sizes=SIZES, device=NAME)
        accuracies, clients = scores(there)
        assert all(isinstance(tensor, There) for tensor in everything(there).values())
        assert not there.engine.fallbacks
        for federation, (here_accuracies, here_clients) in zip(here, expected, strict=True):
            assert_same(everything(there), everything(federation))
            assert accuracies == pytest.approx(here_accuracies)
            assert clients == here_clients
            assert not any(padded(federation))
    assert any(padded(there)) == (method != SEVERAL_STREAMS and not needed(method))


@pytest.mark.parametrize(
    "method", ["fedper", *(pytest.param(one, marks=pytest.mark.long) for one in ("fedavg", "scd", "fedrod", "feddyn"))]
)
def test_no_padded_step_reads_a_number(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is run again on tensors that have shapes but no numbers, with the layers that a GPU has."""
    seen: dict[Recorded, list[Tensor]] = {}
    run_it = Recorded.run

    def noted(self: Recorded, examples: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
        seen[self] = examples
        return run_it(self, examples, calls, *args)

    monkeypatch.setattr(Recorded, "run", noted)
    with SecondDevice():
        there = toy(method, model="test_norm", sizes=SIZES, device=NAME)
        there.advance()
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: True)
    steps = there.engine._trainer.steps.by_recipe
    assert any(recipe.padded for recipe, _ in steps)
    for step in steps.values():
        zeros = [torch.zeros(t.shape, dtype=t.dtype) for t in seen[step]]
        step._function(zeros)  # what it keeps for later steps has numbers
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            step._function([mode.from_tensor(t) for t in zeros])


def noisy(model: Any, values: Any, batch: Any, ctx: Any) -> Tensor:
    """A loss that gives BatchNorm other samples than those of the batch."""
    logits = model(values["w"], batch.x + 0.1)
    return batch.mean(-logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))


@pytest.mark.long
def test_what_padding_cannot_be_told_from_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("methods.fedavg.cross_entropy", noisy)
    here = toy("fedavg", model="test_norm", sizes=SIZES)
    with SecondDevice():
        there = toy("fedavg", model="test_norm", sizes=SIZES, device=NAME)
        for federation in (here, there):
            run(federation, 2)
        assert_same(everything(there), everything(here))
        assert len(there.engine._trainer.steps.unpadded) == 1
        assert not there.engine.fallbacks


def test_full_and_short_batches_train_in_one_call() -> None:
    """So that a client enters a lane once in a round, and one shape is recorded for a number of lanes."""
    seen: list[int] = []
    with SecondDevice(), pytest.MonkeyPatch().context() as patch:
        run_it = Recorded.run

        def noted(self: Recorded, examples: list[Tensor], calls: int, *args: Any) -> list[Tensor]:
            seen.append(calls)
            return run_it(self, examples, calls, *args)

        patch.setattr(Recorded, "run", noted)
        there = toy("fedavg", model="test_norm", sizes=SIZES, device=NAME, epochs=1)
        there.advance()
        kinds = there.engine._trainer.steps.by_recipe
    assert [recipe.padded for recipe, _ in kinds if not recipe.frozen] == [True]
    assert there.engine.steps > sum(seen)
