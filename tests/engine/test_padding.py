"""Short batches of unequal sizes train together, as on a GPU; BatchNorm's statistics are those of the real samples
only."""

import contextlib
from typing import Any

import pytest
from torch import Tensor

from bench.method import METHODS, Client, Method, Program, State, Train, Upload
from tests.engine.problems import EVERY_METHOD, assert_same, everything, run, toy
from tests.engine.second_device import NAME, SecondDevice

SEVERAL_STREAMS = ("comet", "perfedavg")
SIZES = [13, 7, 1, 0, 10, 6]  # in batches of four; the short batches have three, two and two samples


def padded(federation: Any) -> list[bool]:
    """For each step function of a federation's trainings, whether its batches were padded."""
    return [recipe.padded for recipe, _ in federation.engine._trainer._recorded_steps]


@pytest.mark.long
@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_trains_with_padding_as_without(method: str) -> None:
    """The CPU pads nothing. On the device, only methods with several streams of batches or composed models are not
    padded."""
    here = toy(method, model="test_norm", sizes=SIZES)
    with SecondDevice():
        there = toy(method, model="test_norm", sizes=SIZES, device=NAME)
        scores = [[row["value"] for row in run(federation, 2).metrics] for federation in (here, there)]
        assert_same(everything(there), everything(here))
    assert scores[1] == pytest.approx(scores[0])
    assert any(padded(there)) == (method not in SEVERAL_STREAMS)
    assert not any(padded(here))


def noisy(model: Any, values: Any, batch: Any, ctx: Any) -> Tensor:
    """A loss that gives BatchNorm other samples than those of the batch."""
    logits = model(values["w"], batch.x + 0.1)
    return batch.mean(-logits.log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1))


class _Noisy(Method):
    """FedAvg with that loss."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=noisy)
        yield Upload({"model": trained["w"]})


def test_what_padding_cannot_be_told_from_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_items", {**METHODS._items, "test_noisy": _Noisy})
    here = toy("test_noisy", model="test_norm", sizes=SIZES)
    with SecondDevice():
        there = toy("test_noisy", model="test_norm", sizes=SIZES, device=NAME)
        for federation in (here, there):
            run(federation, 2)
        assert_same(everything(there), everything(here))
        assert len(there.engine._trainer._unpadded) == 1
        assert not there.engine.fallbacks


def test_without_the_mask_it_would_be_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.forward.masked", lambda net, mask: contextlib.nullcontext())
    here = toy("fedavg", model="test_norm", sizes=SIZES)
    with SecondDevice():
        there = toy("fedavg", model="test_norm", sizes=SIZES, device=NAME)
        for federation in (here, there):
            run(federation, 1)
        with pytest.raises(AssertionError):
            assert_same(everything(there), everything(here))


def test_one_number_of_samples_is_recorded_for_all_short_batches() -> None:
    with SecondDevice():
        there = toy("fedavg", model="test_norm", sizes=SIZES, device=NAME)
        run(there, 1)
        kinds = there.engine._trainer._recorded_steps
    assert sorted(recipe.padded for recipe, _ in kinds if not recipe.frozen) == [False, True]
