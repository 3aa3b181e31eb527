"""The memory that the dry run predicts, compared with the memory that tensors take."""

import contextlib
import gc
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy as cross_entropy_of

from bench.data import TokenShape, noise
from bench.engine import counting
from bench.engine.counting import LARGE, Shadow
from bench.engine.device_data import Pool
from bench.engine.memory import MemoryMeter
from bench.method import METHODS, Client, Hyperparameters, Method, Program, State, Train, Upload, cross_entropy, hp
from bench.models.factory import build
from bench.models.init import initialise
from bench.rng import generator
from bench.runs.cell import run_cell
from bench.runs.forecast import rehearsal as rehearsals
from bench.runs.forecast.estimate import Estimate, borrowed, estimate, folder_bytes, network_of
from bench.runs.forecast.limit import OutOfTimeError, alarm
from bench.runs.forecast.memory import held, keep_on_host, models, step_bytes
from bench.runs.forecast.outline import ClientShares, DataSize, data_size, outlined_shares, shares
from bench.runs.forecast.rehearsal import CannotRehearseError, rehearse
from bench.runs.forecast.timing import measured
from bench.runs.session_options import Options
from bench.settings import OperationPart, Settings
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


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_precision_has_an_estimate(precision: Any, tmp_path: Path) -> None:
    settings = Settings(method="fedavg", clients=4, alpha=1.0, model="resnet18", rounds=2, precision=precision)
    cost = estimate(settings, tmp_path, "cpu")
    assert cost is not None
    assert cost.seconds > 0


def test_models_rest_on_the_host_where_they_would_take_half_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(method="ditto", clients=100, participation=0.2, model="logistic")
    count = models(settings, 100)  # two for each of 100 clients, and two new ones for each of the 20 selected
    assert count == pytest.approx(240, rel=0.05)
    remembering = settings.model_copy(update={"channel": (OperationPart(name="top_k"), OperationPart(name="cast"))})
    assert models(remembering, 100) == count + 100, "what was not sent yet, by each client"
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


@pytest.mark.long
def test_a_frozen_body_is_counted_once_and_no_checkpoint_holds_it(tmp_path: Path) -> None:
    """A body of more numbers than a rehearsal has, and a head of few."""
    given = {"method": "ditto", "clients": 10, "model_options": {"hidden": 2000}, "alpha": 1.0}
    body, head = 4 * (64 + 1) * 2000, 4 * (2000 + 1) * 10
    free, frozen = (estimate(Settings(frozen=f, **given), tmp_path, "cpu") for f in ((), ("body",)))
    assert free is not None
    assert frozen is not None
    held_of = models(Settings(**given), 10)
    network = network_of(Settings(frozen=("body",), **given), DataSize((1, 8, 8), 10, 1000, 100), "cpu")
    assert (network.model, network.frozen, network.features) == (head, body, 4 * 2000)
    assert frozen.checkpoint == pytest.approx(20 * head, rel=0.1)
    assert free.checkpoint == pytest.approx(20 * (head + body), rel=0.1)
    assert free.memory - frozen.memory + 1797 * network.features > 0.9 * (held_of - 1) * body


@pytest.mark.long
def test_the_seconds_of_features_are_those_of_one_pass_over_the_samples(tmp_path: Path) -> None:
    """Within a factor of ten, as this machine may be busy; the rounds take far less."""
    given = {"method": "fedavg", "clients": 40, "model": "resnet18", "alpha": 1.0, "rounds": 2}
    given |= {"dataset": "cifar10", "frozen": ("body",)}
    cost = estimate(Settings(**given), tmp_path, "cpu")
    assert cost is not None
    net = build("resnet18", (3, 32, 32), 10).to_empty(device="cpu").eval()
    begun = time.process_time()
    with torch.no_grad():
        net.features(torch.zeros(100, 3, 32, 32))  # type: ignore[operator]
    pass_over_all = (time.process_time() - begun) * 60_000 / 100
    assert pass_over_all / 10 < cost.warm_up < 10 * pass_over_all


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


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("comet_cnn", (1, 16, 16), {}),
        pytest.param("resnet18_gn", (3, 8, 8), {}, marks=pytest.mark.long),
        ("gru", TokenShape(6, 20), {}),
    ],
)
def test_a_step_on_shapes_takes_the_bytes_of_one_on_numbers(
    name: str, shape: tuple[int, ...], options: dict[str, int]
) -> None:
    net = build(name, shape, 5, options)
    rng = generator("tests", name)
    tensors = initialise(net, rng)
    weights = [tensors[key].requires_grad_() for key, _ in net.named_parameters()]
    x, y = Pool.of(noise(shape, 5, 4, rng), torch.device("cpu"), torch.float32).take(torch.arange(4))
    peaks = []
    for samples in (2, 4):
        with MemoryMeter() as footprint:
            loss = cross_entropy_of(functional_call(net, tensors, (x[:samples],)), y[:samples])
            torch.autograd.grad(loss, weights)
        peaks.append(footprint.peak)
    counted = [step_bytes(name, shape, 5, json.dumps(options), samples, "cpu").gradient for samples in (2, 4)]
    assert counted == peaks


SIZE = DataSize((1, 8, 8), 10, 1500, 300)
SHARES = ClientShares(clients=10, train=120, validation=30, test=30, common=0)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_rehearsal_takes_the_steps_that_the_cell_would(method: str) -> None:
    """Ditto trains a second model in it, too; 12 of a client's 13 batches are whole."""
    settings = Settings(method=method, clients=10, participation=0.5, epochs=2, batch_size=10, model="logistic")
    trained = {"fedavg": 1, "ditto": 2}[method]
    found = rehearse(settings, SIZE, SHARES._replace(train=125))
    assert found.selected == 5
    assert [found.few.steps, found.more.steps] == [trained * clients * 2 * 13 for clients in (2, 4)]
    assert found.at(lambda c: c.steps, 5) == trained * 5 * 2 * 13
    assert sum(found.few.round.calls.values()) == found.few.steps
    assert sorted(found.few.round.calls.values()) == sorted([2 * 2 * 12, 2 * 2] * trained)


@pytest.mark.long
@pytest.mark.parametrize("hidden", [50, 5000])
def test_private_training_is_rehearsed(hidden: int) -> None:
    """What is compared of its losses has no numbers then, and nothing is refused by invented ones."""
    more = {"dp_sgd": {"norm": 1.0}, "model": "mlp", "model_options": {"hidden": hidden}}
    found = rehearse(Settings(method="fedavg", clients=10, batch_size=10, epochs=1, **more), SIZE, SHARES)
    assert found.few.steps > 0


@pytest.mark.parametrize(
    ("model", "products"),
    [
        ("logistic", 2 * 64 * 10),  # the outputs, and the gradient of the weights
        ("mlp", 2 * 64 * 50 + 3 * 50 * 10),  # of the second layer the gradient of its inputs, too
    ],
)
def test_the_operations_of_a_step_are_those_that_a_hand_counts(model: str, products: int) -> None:
    options = {"hidden": 50} if model == "mlp" else {}
    settings = Settings(method="fedavg", clients=10, batch_size=10, model=model, model_options=options)
    [step] = rehearse(settings, SIZE, SHARES).steps
    assert sum(one.flops * count for one, count in step.items()) == 2 * 10 * products


def test_a_large_model_is_rehearsed_without_its_numbers() -> None:
    """Of 40 million weights a client's model takes 160 MB, which are counted."""
    settings = Settings(method="local", clients=10, batch_size=10, model="mlp", model_options={"hidden": 530_000})
    found = rehearse(settings, SIZE, SHARES)
    model = 4 * (64 * 530_000 + 530_000 + 530_000 * 10 + 10)
    assert found.at(lambda c: c.state, 10) == pytest.approx(10 * model, rel=0.01)


def test_large_tensors_have_shapes_and_small_results_of_them_have_numbers() -> None:
    with Shadow().counting():
        large = torch.zeros(2 * LARGE)
        large += 1
        rows = large.view(-1, 16) @ torch.ones(16, 16)
        gram = rows.mT @ rows
        assert (large.is_meta, rows.is_meta, gram.is_meta) == (True, True, False)
        assert rows.shape == (2 * LARGE // 16, 16)
        assert torch.linalg.cholesky(gram).isfinite().all()
        assert isinstance(large.sum().item(), float)
        assert torch.ones(3).sum().item() == 3.0  # what is small is computed
    assert torch.zeros(2 * LARGE).sum() == 0


def test_who_waits_for_an_invented_number_to_change_is_told_from_one_who_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.engine.counting._MOST", 200)
    settings = Settings(method="fedavg", clients=10, batch_size=10, model="mlp", model_options={"hidden": 64})
    with pytest.raises(CannotRehearseError, match="more than 200 operations"):
        rehearse(settings, SIZE, SHARES._replace(train=77))


@pytest.mark.long
def test_a_cells_folder_is_forecast_as_it_is_written(tmp_path: Path) -> None:
    settings = Settings(
        method="ditto", dataset="digits", partition="iid", clients=6, model="logistic", rounds=12, eval_every=2,
        batch_size=50, protocol="honest",
    )  # fmt: skip
    assert run_cell(settings, tmp_path / "cell", Options(device="cpu")).state == "done"
    really = sum(-(-file.stat().st_size // 4096) * 4096 for file in (tmp_path / "cell").iterdir()) + 4096
    known = data_size(settings, tmp_path)
    assert known is not None
    size, dataset = known
    forecast = folder_bytes(settings, rehearse(settings, size, shares(settings, dataset)))
    assert forecast == pytest.approx(really, rel=0.2)


def test_what_travels_is_one_model_to_and_from_every_client_of_fedavg() -> None:
    settings = Settings(method="fedavg", clients=10, participation=0.5, rounds=7, batch_size=10, model="logistic")
    rehearsal = rehearse(settings, SIZE, SHARES)
    assert rehearsal.at(lambda c: c.sent, rehearsal.selected) == 5 * 2 * 4 * (64 + 1) * 10


@pytest.mark.parametrize("hidden", [50, 5000])
def test_uploads_are_forecast_as_their_channel_sends_them(hidden: int) -> None:
    """Half of float32 up, all of it down; a large model has no numbers to select from, but as many as it should."""
    settings = Settings(method="fedavg", clients=10, batch_size=10, model="mlp", model_options={"hidden": hidden})
    d = 64 * hidden + hidden + hidden * 10 + 10
    for operations, up in (
        (({"name": "cast", "to": "fp16"},), 2 * d),
        (({"name": "random_k", "share": 0.1},), 4 * round(0.1 * d)),
        (({"name": "top_k", "share": 0.1}, {"name": "quantise", "bits": 4}), (round(0.1 * d) * 4 + 32 + d + 7) // 8),
    ):
        rehearsal = rehearse(Settings(**{**settings.model_dump(), "channel": operations}), SIZE, SHARES)
        assert rehearsal.at(lambda c: c.sent, rehearsal.selected) == 10 * (up + 4 * d)


# Time may be over just after a file was opened and before it was entered: then nobody closes it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning")
# Or in a callback of pydantic, which swallows it.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_the_end_of_time_is_not_taken_for_an_error_of_the_method() -> None:
    settings = Settings(method="fedavg", clients=10, batch_size=10, model="cnn")
    with pytest.raises(OutOfTimeError), alarm(0.001):
        rehearse(settings, DataSize((1, 28, 28), 10, 1500, 300), SHARES._replace(train=77))


def test_operations_of_known_shapes_are_counted_as_new_ones() -> None:
    """In another rehearsal, of which nothing is known but the shapes of operations."""
    settings = Settings(method="ditto", clients=10, batch_size=10, model="cnn")
    size = DataSize((1, 28, 28), 10, 1500, 300)
    counting._KNOWN_OPERATIONS.clear()
    counts = []
    for _ in range(2):
        rehearsals._KNOWN.clear()
        counts.append(rehearse(settings, size, SHARES))
    assert counts[0] == counts[1]
    assert counting._KNOWN_OPERATIONS


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
def test_clients_that_are_held_out_take_no_steps(tmp_path: Path, changes: dict[str, Any], selected: int) -> None:
    """Of 20 clients 15 are new ones after the last round; each other takes 9 steps, over 3 batches, in each round."""
    settings = Settings(
        method="fedavg", partition="iid", clients=20, new_clients=15, epochs=3, rounds=7, model="logistic",
        batch_size=30, protocol="paper", **changes,
    )  # fmt: skip
    cost = estimate(settings, tmp_path, "cpu")
    assert cost is not None
    assert cost.steps == 7 * selected * 9
    twice = borrowed(settings.model_copy(update={"rounds": 14, "new_clients": 10}), [(settings, cost)], tmp_path)
    assert twice is not None
    assert twice.steps == 4 * cost.steps  # of twice as many clients


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
    few, many = (rehearsals.kind(settings.model_copy(update=changes)) for changes in (first, second))
    assert few != many
    pull = settings.model_copy(update={"method": "fedprox"})
    weak, strong = (rehearsals.kind(pull.model_copy(update={"hp": {"mu": mu}})) for mu in (0.1, 0.2))
    assert weak == strong


def test_a_cost_is_borrowed_in_proportion_to_training(tmp_path: Path) -> None:
    """Twice as many rounds of as many clients take twice as long; a checkpoint is as large."""
    settings = Settings(method="fedavg", dataset="digits", partition="iid", clients=6, model="logistic", rounds=4)
    cost = Estimate(100, 8.0, 1.0, 5, 6, 7, 0, 9, sent=1000)
    for change, times in (({"rounds": 8}, 2.0), ({"epochs": 3}, 3.0), ({"method": "ditto"}, 1.0)):
        found = borrowed(settings.model_copy(update=change), [(settings, cost)], tmp_path)
        assert found is not None
        assert (found.seconds, found.steps, found.sent) == (8 * times, 100 * times, 1000 * times)
        assert (found.memory, found.checkpoint, found.warm_up, found.borrowed) == (7, 6, 1.0, True)


def test_what_was_counted_of_a_method_is_kept_until_its_code_or_the_harness_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counted = held.__wrapped__("local", "{}")
    file = tmp_path / "pfleague" / "models.json"
    [key] = json.loads(file.read_text())
    file.write_text(json.dumps({key: [[1, 2], [3, 4]]}))
    assert held.__wrapped__("local", "{}") == ((1, 2), (3, 4))
    monkeypatch.setattr("bench.runs.forecast.kept._harness", lambda: "another")
    assert held.__wrapped__("local", "{}") == counted
    file.write_text("{")  # a damaged file costs time
    assert held.__wrapped__("local", "{}") == counted


def test_measuring_ends_when_its_time_is_over() -> None:
    """What was not measured is left out, so that it keeps the counted time; an alarm ends a round that does not."""
    settings = Settings(method="fedavg", dataset="digits", partition="iid", clients=6, model="logistic")
    counted = Estimate(1, 1.0, 1.0, 1, 1, 1, 1, 1)
    assert measured({"a": (settings, counted)}, Path("data"), "cpu", limit=0.0) == {}
    with pytest.raises(OutOfTimeError), alarm(0.01):
        time.sleep(60)


@pytest.mark.parametrize("after", [0.0, 60.0])
def test_an_alarm_that_is_swallowed_rings_again(after: float) -> None:
    """At the end of the block, and before if it goes on."""

    def swallow() -> None:
        with contextlib.suppress(OutOfTimeError):
            time.sleep(60)
        time.sleep(after)

    begin = time.monotonic()
    with pytest.raises(OutOfTimeError), alarm(0.01):
        swallow()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert time.monotonic() - begin < 30


def test_a_measured_estimate_says_so() -> None:
    settings = Settings(method="fedavg", dataset="digits", partition="iid", clients=6, model="logistic", batch_size=50)
    counted = Estimate(1, 1.0, 1.0, 1, 1, 1, 1, 1)
    [found] = measured({"a": (settings, counted)}, Path("data"), "cpu", limit=20.0).values()
    assert (found.measured, counted.measured) == (True, False)
    assert found.seconds > 0
    assert found.memory == counted.memory


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
