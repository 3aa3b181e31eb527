"""The memory that the dry run predicts, compared with the memory that tensors take."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.engine.memory import MemoryMeter
from bench.method import METHODS, Client, Hyperparameters, Method, Program, State, Train, Upload, cross_entropy, hp
from bench.runs.forecast.memory import held, in_a_step, keep_on_host, models
from bench.runs.forecast.rehearsal import DataSize, _cut, _stand_in, _work, rehearse
from bench.settings import Settings
from bench.store.checkpoint import Checkpoint, Writer
from tests.engine.problems import run, toy
from tests.runs.device_memory import device_memory


def test_a_footprint_is_what_is_there_at_one_time() -> None:
    with MemoryMeter() as footprint:
        x = torch.zeros(1000)
        y = x + 1
        view = y[:10]
        assert footprint.live == 8000
        del y
        assert footprint.live == 8000  # the view keeps the memory
        del view
        z = torch.cat([x, x])
    assert (footprint.live, footprint.peak) == (12_000, 12_000)
    del x, z
    assert (footprint.live, footprint.peak) == (0, 12_000)


@pytest.mark.parametrize(
    ("method", "between", "peak"),
    [
        ("local", 1, 2),  # the old model and the new one
        ("fedavg", 1, 2),  # one is evaluated as the local model, one is sent
        ("ditto", 2, 4),  # two models, both old and new
    ],
)
def test_models_that_a_client_holds(method: str, between: float, peak: float) -> None:
    each = held(method, "{}")[1]
    assert each == pytest.approx((between, peak), abs=0.1)  # besides the models a client holds its samples


def test_models_rest_on_the_host_where_they_would_take_half_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(method="ditto", clients=100, participation=0.2, model="logistic")
    count = models(settings)  # two for each of 100 clients, and two new ones for each of the 20 selected
    assert count == pytest.approx(240, rel=0.05)
    twice = 2 * count * 4 * (16 * 3 + 3)  # bytes of weights and biases
    for free in (0, twice):  # free memory makes no difference
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 1.01 * twice))
        assert not keep_on_host(settings, (1, 4, 4), 3, "cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 0.99 * twice))
        assert keep_on_host(settings, (1, 4, 4), 3, "cuda")
        assert not keep_on_host(settings, (1, 4, 4), 3, "cpu")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 2.01 * twice))
        assert not keep_on_host(settings, (1, 4, 4), 3, "cuda", cells=2)
        assert keep_on_host(settings, (1, 4, 4), 3, "cuda", cells=3)


class LateHyper(Hyperparameters):
    start_epochs: int = hp(3, ge=2)
    warm_steps: int = hp(5, ge=1)


@pytest.fixture
def late() -> Iterator[None]:
    """A method that raises an error for a hyperparameter of 0 or 1 epochs."""

    @METHODS.register("test_late")
    class Late(Method):
        Hyper = LateHyper
        mean_of = ("model",)

        def client_round(self, client: Client, down: State) -> Program:
            assert self.hp.start_epochs >= 2
            trained = yield Train({"w": down["model"]}, loss=cross_entropy, steps=self.hp.warm_steps)
            yield Upload({"model": trained["w"]})

    yield
    del METHODS._items["test_late"]


@pytest.mark.usefixtures("late")
def test_no_hyperparameter_is_set_to_what_its_class_refuses() -> None:
    plain = json.dumps({"start_epochs": 4, "warm_steps": 6})
    assert held("test_late", plain)[1].peak > 0
    assert in_a_step("test_late", plain) > 0


SIZE = DataSize((1, 8, 8), 10, 1500, 300)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_the_stand_in_does_what_the_cell_would(method: str) -> None:
    """Ditto trains a second model in it, too; and if only a part of a round is run, its steps are scaled to the
    whole round."""
    settings = Settings(method=method, clients=10, participation=0.5, batch_size=10, model="logistic")
    whole, models = _work(settings, SIZE), {"fedavg": 1, "ditto": 2}[method]
    assert whole == (10, 5, 120, 12)
    for part in (whole, _cut(whole, 24, 1), _cut(whole, 6, 3)):
        federation = _stand_in(settings, SIZE, whole, part, 30, "cpu", 1)
        federation.advance()
        assert federation.work["steps"] == models * part.selected * part.steps
        assert len(federation.evaluate().clients) > 0


def test_a_round_that_takes_long_is_cut_down_to_some_of_its_clients_and_samples() -> None:
    whole = _work(Settings(method="fedavg", clients=100, participation=0.5, epochs=2, batch_size=10), SIZE)
    assert whole == (100, 50, 12, 4)
    assert _cut(whole, 200, 5) == whole
    assert _cut(whole, 80, 5) == (20, 20, 12, 4)
    assert _cut(whole, 10, 5) == (5, 5, 6, 2)
    assert _cut(whole, 1, 1) == (2, 2, 3, 1)


def test_more_rounds_take_longer() -> None:
    settings = Settings(method="fedavg", clients=10, rounds=20, model="logistic")
    long = settings.model_copy(update={"rounds": 2000})
    one, many = (rehearse(cell, SIZE, 0.0005, 5, "cpu", 1).seconds for cell in (settings, long))
    assert many > 10 * one > 0


@pytest.mark.long
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "ditto", pytest.param("scd", marks=pytest.mark.slow)])
def test_the_memory_of_another_device(method: str, on_host: bool) -> None:
    """The prediction for a GPU, compared with the largest total size of tensors on a simulated device."""
    predicted, measured = device_memory(method, "mlp", 80, on_host)
    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.long
def test_a_checkpoint_that_is_being_written_holds_its_own_size(tmp_path: Path) -> None:
    """The dry run counts it; the thread begins to write when all rounds are over."""
    peaks, gate = [], threading.Event()
    for beside in (False, True):
        with MemoryMeter() as footprint:
            federation = toy("local", model="mlp")
            run(federation, 1)
            tensors, _ = federation.state()
            size = sum(tensor.nbytes for tensor in tensors.values())
            writer = Writer(tmp_path / "checkpoint")
            writer._thread.submit(gate.wait)
            if beside:
                writer.start(Checkpoint(1, tensors, {}))
            del tensors
            run(federation, 3)
            peaks.append(footprint.peak)
    gate.set()
    writer.wait()
    assert 0.5 * size < peaks[1] - peaks[0] <= size
