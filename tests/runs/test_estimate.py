"""What a dry run says of a cell beforehand, compared with what the cell does: its steps, bytes, memory and folder."""

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.engine.memory import MemoryMeter
from bench.federation.channel import encoded_share
from bench.federation.federation import Federation
from bench.method import METHODS, Client, Hyperparameters, Method, Program, State, Train, Upload, cross_entropy, hp
from bench.models.factory import build
from bench.runs.cell import run_cell
from bench.runs.forecast.costs import CannotCountError, as_method_costs, kind, method_key, table
from bench.runs.forecast.counts import count_method
from bench.runs.forecast.estimate import (
    CellCosts,
    Estimate,
    estimate,
    folder_bytes,
    keep_on_host,
    may_be_refused,
    method_costs,
    model_costs,
    models_held,
)  # fmt: skip
from bench.runs.forecast.outline import outlined_shares
from bench.runs.forecast.timing import measured_rates
from bench.runs.session_options import Options
from bench.settings import OperationPart, Settings
from bench.store.checkpoint import Checkpoint, Writer
from tests.engine.problems import run, toy
from tests.runs.device_memory import device_memory

DIGITS: dict[str, Any] = {"dataset": "digits", "partition": "iid", "model": "logistic", "protocol": "honest"}


def cost(settings: Settings) -> Estimate:
    found = estimate(settings, Path("data"), "cpu")
    assert found is not None
    return found


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
    each = method_costs(Settings(method=method)).held[2:]
    assert each == pytest.approx((between, peak), abs=0.1)  # besides the models a client holds its samples


def test_models_rest_on_the_host_where_they_would_take_half_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(method="ditto", clients=100, participation=0.2, model="logistic")
    count = models_held(settings, 100)  # two for each of 100 clients, and two new ones for each of the 20 selected
    assert count == pytest.approx(240, rel=0.05)
    remembering = settings.model_copy(update={"channel": (OperationPart(name="top_k"), OperationPart(name="cast"))})
    assert models_held(remembering, 100) == count + 100, "what was not sent yet, by each client"
    twice = 2 * count * 4 * (16 * 3 + 3)  # bytes of weights and biases
    for free in (0, twice):  # free memory makes no difference
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 1.01 * twice))
        assert not keep_on_host(settings, 100, (1, 4, 4), 3, "cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 0.99 * twice))
        assert keep_on_host(settings, 100, (1, 4, 4), 3, "cuda")
        assert not keep_on_host(settings, 100, (1, 4, 4), 3, "cpu")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 2.01 * twice))
        assert not keep_on_host(settings, 100, (1, 4, 4), 3, "cuda", cells=2)
        assert keep_on_host(settings, 100, (1, 4, 4), 3, "cuda", cells=3)


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
    late = Settings(method="test_late", hp={"start_epochs": 4, "warm_steps": 6})
    assert method_costs(late).held[3] > 0
    assert may_be_refused(late)  # only the method itself knows what it refuses


@pytest.mark.usefixtures("late")
def test_a_method_whose_rounds_fail_is_told_from_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS.get("test_late"), "client_round", lambda self, client, down: 1 / 0)
    with pytest.raises(CannotCountError, match="ZeroDivisionError"):
        method_costs(Settings(method="test_late", hp={"start_epochs": 5, "warm_steps": 6}))


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep"])
def test_a_row_of_the_table_is_what_the_method_is_counted_to_do(method: str) -> None:
    settings = Settings(method=method, hp={"head_epochs": 1, "body_epochs": 1} if method == "fedrep" else {})
    counted, known = count_method(settings), as_method_costs(table("methods")[method_key(settings)])
    assert (known.trigger, known.everyone) == (counted.trigger, counted.everyone)
    assert list(known.steps) == pytest.approx(list(counted.steps))
    for name in ("up", "down", "state"):
        for said, now in zip(getattr(known, name), getattr(counted, name), strict=True):
            assert said == pytest.approx(now), name
    assert known.held == pytest.approx(counted.held, abs=0.01)
    assert counted.steps == {"fedavg": (1, 0, 0, 0), "ditto": (2, 0, 0, 0), "fedrep": (0, 2, 0, 0)}[method]
    units = {"model": 1.0, "head": -1.0} if method == "fedrep" else {"model": 1.0}
    assert counted.up.each == counted.down.each == units


def test_a_row_of_the_table_has_the_numbers_of_the_model() -> None:
    for key, row in table("models").items():
        name, options, kind_of_shape, shape, classes = json.loads(key)
        if kind_of_shape == "tuple" and row["trained"] < 10**6:  # large ones take seconds to build
            net = build(name, tuple(shape), classes, options)
            numbers = {path: parameter.numel() for path, parameter in net.named_parameters()}
            assert row["trained"] == sum(numbers.values()), key
            assert row["head"] == sum(n for path, n in numbers.items() if path.startswith("head.")), key


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "fedrep", "scaffold", "fedproto", "fd", "feddbe", "fedpac"])
def test_what_is_said_of_a_cell_is_what_it_does(method: str) -> None:
    """Steps, bytes and tensors of a checkpoint, with a network by which no method was counted."""
    settings = Settings(
        method=method, dataset="digits", partition="iid", clients=5, model="mlp", model_options={"hidden": 40},
        rounds=3, batch_size=100, epochs=2, validation_share=0.0,
    )  # fmt: skip
    said, federation, steps, sent = cost(settings), Federation.of(settings), 0, 0
    for _ in range(3):
        federation.advance()
        steps += federation.work["steps"]
        sent += federation.ledger[-1]["up"] + federation.ledger[-1]["down_receivers"]
    assert said.steps == pytest.approx(steps, rel=0.1)
    assert said.sent == pytest.approx(sent, rel=0.02)
    state = sum(t.nbytes for t in federation.state()[0].values())
    assert said.checkpoint == pytest.approx(state, rel=0.02)


@pytest.mark.long
def test_a_frozen_body_is_counted_once_and_no_checkpoint_holds_it() -> None:
    """A body of many numbers, and a head of few."""
    given = {"method": "ditto", "clients": 10, "model_options": {"hidden": 2000}, "alpha": 1.0}
    body, head = (64 + 1) * 2000, (2000 + 1) * 10
    free, frozen = (cost(Settings(frozen=f, **given)) for f in ((), ("body",)))
    model = model_costs(Settings(frozen=("body",), **given), "mlp", (1, 8, 8), 10)
    assert (model.trained, model.frozen, model.width, model.on_features) == (head, body, 2000, True)
    assert model.features_seconds > 0
    assert frozen.checkpoint == pytest.approx(21 * 4 * head, rel=0.1)
    assert free.checkpoint == pytest.approx(21 * 4 * (head + body), rel=0.1)
    held = models_held(Settings(**given), 10)
    assert free.memory - frozen.memory + 1797 * 4 * 2000 > 0.9 * (held - 1) * 4 * body


@pytest.mark.long
def test_a_cells_folder_is_forecast_as_it_is_written(tmp_path: Path) -> None:
    """Within a half, as lines of tables have lengths of their own."""
    settings = Settings(method="ditto", clients=6, rounds=12, eval_every=2, batch_size=50, **DIGITS)
    assert run_cell(settings, tmp_path / "cell", Options(device="cpu")).state == "done"
    really = sum(-(-file.stat().st_size // 4096) * 4096 for file in (tmp_path / "cell").iterdir()) + 4096
    cell = CellCosts.of(settings, tmp_path)
    assert cell is not None
    assert folder_bytes(cell) == pytest.approx(really, rel=0.5)


def test_what_travels_is_one_model_to_and_from_every_client_of_fedavg() -> None:
    settings = Settings(method="fedavg", clients=10, participation=0.5, rounds=7, batch_size=10, **DIGITS)
    assert cost(settings).sent == 7 * 5 * 2 * 4 * (64 + 1) * 10


def test_uploads_are_forecast_as_their_channel_sends_them() -> None:
    """Half of float32 up; numbers at random positions; positions as bits, a scale and four bits of each number."""
    settings, d = Settings(method="fedavg", clients=10), 64 * 5000 + 5000
    for operations, up in (
        (({"name": "cast", "to": "fp16"},), 2 * d),
        (({"name": "random_k", "share": 0.1},), 4 * round(0.1 * d)),
        (({"name": "top_k", "share": 0.1}, {"name": "quantise", "bits": 4}), (round(0.1 * d) * 4 + 32 + d + 7) // 8),
    ):
        assert encoded_share(Settings(**{**settings.model_dump(), "channel": operations}), d) * 4 * d == pytest.approx(
            up
        )


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("cifar10", {}),
        ("cifar10", {"mean": [0.5] * 3, "std": [0.5] * 3}),
        ("tinyimagenet", {"resize": 32}),
        ("ag_news", {"vocabulary": 32_000, "length": 200}),
        ("flowers102", {"size": 32, "mean": [0.5] * 3}),
    ],
)
def test_clients_are_known_without_data_whatever_a_sample_s_size(tmp_path: Path, dataset: str, options: Any) -> None:
    totals = {"cifar10": 50_000, "tinyimagenet": 100_000, "ag_news": 120_000, "flowers102": 2_040}
    settings = Settings(
        method="fedavg", dataset=dataset, dataset_options=options, partition="iid", clients=10, protocol="paper"
    )
    found = outlined_shares(settings, tmp_path)
    assert found is not None
    assert (found.clients, found.train) == (10, totals[dataset] // 10)
    emnist = settings.model_copy(update={"dataset": "emnist", "dataset_options": {"split": "byclass"}})
    assert outlined_shares(emnist, tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "selected"),
    [({}, 5), ({"participation": 0.5}, 2), ({"unselected": "cap", "participation": 0.5}, 5)],
)
def test_clients_that_are_held_out_take_no_steps(changes: dict[str, Any], selected: int) -> None:
    """Of 20 clients 15 are new ones after the last round; each other takes 9 steps, over 3 batches, in each round."""
    settings = Settings(
        method="fedavg", partition="iid", clients=20, new_clients=15, epochs=3, rounds=7, model="logistic",
        batch_size=30, protocol="paper", **changes,
    )  # fmt: skip
    assert cost(settings).steps == 7 * selected * 9


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("fedavg", {"partition_options": {"samples": 10}}, {"partition_options": {"samples": 250}}),
        ("elastic", {"hp": {"share": 0.01}}, {"hp": {"share": 1.0}}),
    ],
)
def test_cells_that_differ_in_their_work_are_of_two_kinds(
    method: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A loss gets a hyperparameter that is not static as a tensor, so that it makes no difference."""
    settings = Settings(method=method, partition="dirichlet_pfl_research", alpha=1.0)
    few, many = (kind(settings.model_copy(update=changes)) for changes in (first, second))
    assert few != many
    pull = settings.model_copy(update={"method": "fedprox"})
    weak, strong = (kind(pull.model_copy(update={"hp": {"mu": mu}})) for mu in (0.1, 0.2))
    assert weak == strong


def test_measured_rates_are_of_rounds_that_were_run() -> None:
    settings = Settings(method="fedavg", clients=6, batch_size=50, **DIGITS)
    rates = measured_rates(settings, Path("data"), "cpu")
    assert rates is not None
    assert 0 < rates.evaluated < rates.step < 1
    found = estimate(settings, Path("data"), "cpu", rates=rates)
    assert found is not None
    assert (found.measured, cost(settings).measured) == (True, False)
    assert found.seconds >= found.steps * rates.step
    assert measured_rates(settings, Path("data"), "cpu", until=0.0) is None, "the time is over"


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
    for beside in (False, False, True):  # the first makes what later cells of the process share
        gc.collect()
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
    assert 0.5 * size < peaks[2] - peaks[1] <= size
