"""What a dry run says of cells before they run, compared with what they do: steps, bytes, memory, time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.data import TokenShape
from bench.engine.backends import backends
from bench.errors import UserError
from bench.federation.cell_data import load_dataset
from bench.federation.federation import Federation
from bench.method import METHODS
from bench.runs.forecast.estimate import CellWork, estimate, keep_on_host, models
from bench.runs.forecast.networks import TABLE, count, network_size
from bench.runs.forecast.outline import (
    ClientShares,
    DataSize,
    client_steps,
    data_size,
    known_set,
    missing_file,
    outlined_shares,
    selected,
)
from bench.runs.forecast.stand_in import stand_in
from bench.runs.forecast.timing import fewer, kind, measured, measured_rates, warm_up
from bench.settings import OperationPart, PublicSet, Settings
from tests.engine.problems import METHOD_NAMES
from tests.engine.second_device import NAME, SecondDevice
from tests.runs.device_memory import device_memory

QUICK = {"ditto", "fedbuff", "fedem", "fedrep", "scd"}
LESS = {"centralized": 1.4, "dsfl": 2.0, "elastic": 0.85, "fedala": 1.2, "fedfomo": 1.5, "fedmd": 1.3, "ktpfl": 1.3}
LESS |= {"flash": 3.75, "metafed": 1.5}
"""Methods whose clients take other numbers of steps than their trainings say, by how many times as many are said: they
train on public samples or on a share of their own, stop early, or train on the server."""


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.long) for m in METHOD_NAMES]
)
def test_steps_of_a_round_are_those_that_its_trainings_say(method: str) -> None:
    """Of 9 samples, 3 batches in each of 2 epochs; Ditto's personal phase, FedRep's head and others' come on top.

    In FedL2G's warm-up no model trains.
    """
    adapter = METHODS.get(method).adapter
    settings = Settings(
        method=method, hp={"warmup": 0} if method == "fedl2g" else {}, epochs=2, batch_size=4, model="mlp",
        model_options={"hidden": 8}, clients=4, public=PublicSet(name="digits", size=12),
        adapters={"name": adapter, "rank": 2} if adapter else None,
    )  # fmt: skip
    federation = stand_in(settings, DataSize((1, 4, 4), 3, 0, 0), ClientShares(4, 9, 0, 2, 6))
    for _ in range(3):
        federation.advance()
    said = client_steps(settings, 9) * selected(settings, 4)
    really = federation.work["steps"] or federation.work["server_steps"]
    assert said / really == pytest.approx(LESS.get(method, 1.0), rel=0.15 if method in LESS else 1e-9)


@pytest.mark.parametrize(("hp", "steps"), [({}, 2 * 6), ({"personal_epochs": 1}, 6 + 3), ({"personal_epochs": 0}, 6)])
def test_a_phase_takes_the_epochs_of_its_hyperparameter_or_the_cells(hp: dict[str, int], steps: int) -> None:
    assert client_steps(Settings(method="ditto", hp=hp, epochs=2, batch_size=4), 9) == steps
    assert client_steps(Settings(method="ditto", hp=hp, steps=5, batch_size=4), 9) == 5 + (steps - 6 if hp else 5)


@pytest.mark.parametrize("name", ["logistic", "cnn", "resnet18_gn"])
def test_the_table_has_the_sizes_that_are_counted(name: str) -> None:
    settings = Settings(method="fedavg", model=name)
    shape = (3, 32, 32) if name == "resnet18_gn" else (1, 28, 28)
    assert network_size(settings, name, shape, 10) == count(settings, name, shape, 10)
    assert len(json.loads(TABLE.read_text(encoding="utf-8"))) > 50


@pytest.mark.parametrize(
    ("model", "trained", "products"), [("logistic", 65 * 10, 64 * 10), ("mlp", 65 * 50 + 51 * 10, 64 * 50 + 50 * 10)]
)
def test_sizes_are_those_that_a_hand_counts(model: str, trained: int, products: int) -> None:
    options = {"hidden": 50} if model == "mlp" else {}
    size = count(Settings(method="fedavg", model=model, model_options=options), model, (1, 8, 8), 10)
    assert (size.trained, size.products, size.alone) == (trained, products, False)
    words = count(Settings(method="fedavg", model="gru"), "gru", TokenShape(6, 20), 5)
    assert min(words.trained, words.training) > 0


def test_a_frozen_body_is_counted_once_and_what_is_trained_is_its_head() -> None:
    given = {"method": "ditto", "clients": 10, "model_options": {"hidden": 2000}, "alpha": 1.0}
    body, head = (64 + 1) * 2000, (2000 + 1) * 10
    size = count(Settings(frozen=("body",), **given), "mlp", (1, 8, 8), 10)
    assert (size.trained, size.frozen, size.features) == (head, body, 2000)
    assert (size.products, size.body) == (2000 * 10, 64 * 2000)
    free, frozen = (estimate(Settings(frozen=f, **given), Path("data"), "cpu") for f in ((), ("body",)))
    assert free is not None
    assert frozen is not None
    assert free.checkpoint == pytest.approx(21 * 4 * (head + body), rel=0.01)
    assert frozen.checkpoint == pytest.approx(21 * 4 * head, rel=0.01)
    assert frozen.sent < free.sent / 5


def test_models_rest_on_the_host_where_they_would_take_half_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(method="ditto", clients=100, participation=0.2, model="logistic")
    count = models(settings, 100)  # two for each of 100 clients, and two new ones for each of the 20 selected
    assert count == pytest.approx(240, rel=0.05)
    remembering = settings.model_copy(update={"channel": (OperationPart(name="top_k"), OperationPart(name="cast"))})
    assert models(remembering, 100) == pytest.approx(count + 100), "what was not sent yet, by each client"
    twice = 2 * count * 4 * (16 * 3 + 3)  # bytes of weights and biases
    for device, memory, cells, rests in (
        ("cuda", 1.01, 1, False), ("cuda", 0.99, 1, True), ("cpu", 0.99, 1, False), ("cuda", 2.01, 2, False),
        ("cuda", 2.01, 3, True),
    ):  # fmt: skip
        for free in (0, twice):  # makes no difference
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free, whole=memory * twice: (free, whole))
            assert keep_on_host(settings, 100, (1, 4, 4), 3, device, cells) == rests


def test_what_travels_is_one_model_to_and_from_every_client_of_fedavg() -> None:
    settings = Settings(method="fedavg", clients=10, participation=0.5, rounds=7, batch_size=10, model="logistic")
    cost = estimate(settings, Path("data"), "cpu")
    assert cost is not None
    assert cost.sent == 7 * 5 * 2 * 4 * (64 + 1) * 10


def test_data_sets_are_as_their_loaders_have_them_or_miss_them(tmp_path: Path) -> None:
    digits = Settings(method="fedavg", dataset="digits")
    dataset, size = load_dataset(digits), data_size(digits, tmp_path)
    assert size == DataSize(dataset.shape, dataset.num_classes, dataset.n_train, len(dataset.y) - dataset.n_train)
    for name in ("mnist", "cifar10", "cifar100", "emnist", "fashion_mnist", "organamnist", "tinyimagenet", "flowers102",
                 "ag_news", "inaturalist2017"):  # fmt: skip
        assert known_set(Settings(method="fedavg", dataset=name)) is not None
        with pytest.raises(UserError) as refused:
            load_dataset(Settings(method="fedavg", dataset=name), tmp_path)
        said = missing_file(name, tmp_path)
        assert said.startswith(f"{name}: ")
        assert said.split()[1] in str(refused.value).replace("'", " "), str(refused.value)


@pytest.mark.parametrize(
    ("dataset", "total", "options"),
    [
        ("cifar10", 50_000, {"mean": [0.5] * 3, "std": [0.5] * 3}),
        ("tinyimagenet", 100_000, {"resize": 32}),
        ("ag_news", 120_000, {"vocabulary": 32_000, "length": 200}),
        ("flowers102", 2_040, {"size": 32, "mean": [0.5] * 3}),
    ],
)
def test_clients_are_known_without_data_whatever_a_sample_s_size(
    tmp_path: Path, dataset: str, total: int, options: Any
) -> None:
    settings = Settings(
        method="fedavg", dataset=dataset, dataset_options=options, partition="iid", clients=10, protocol="paper"
    )
    found = outlined_shares(settings, tmp_path)
    assert found is not None
    assert (found.clients, found.train) == (10, total // 10)
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
    settings = Settings(method=method, partition="dirichlet_pfl_research", alpha=1.0)
    few, many = (kind(settings.model_copy(update=changes)) for changes in (first, second))
    assert few != many
    assert kind(settings) == kind(settings.model_copy(update={"seed": 3, "lr": 0.5}))


def test_measuring_ends_when_its_time_is_over() -> None:
    """What was not measured is left out, so that it keeps its estimate."""
    settings = Settings(method="fedavg", dataset="digits", partition="iid", clients=6, model="logistic")
    work = CellWork.of(settings, Path("data"))
    assert work is not None
    assert measured([work], "cpu", limit=0.0) == {}
    assert list(measured([work], "cpu", limit=1.0)) == [kind(settings)]


def test_a_measured_cell_has_its_own_bytes_and_a_time_of_its_own() -> None:
    """FedPer keeps the head, and half of the clients take part: of each the rounds are timed once."""
    settings = Settings(
        method="fedper", dataset="digits", partition="iid", clients=6, participation=0.5, model="mlp", batch_size=50,
        model_options={"hidden": 50}, rounds=3,
    )  # fmt: skip
    work = CellWork.of(settings, Path("data"))
    assert work is not None
    rates = measured_rates(work, "cpu")
    assert rates.sent == 2 * 4 * 65 * 50
    cost, guess = (estimate(settings, Path("data"), "cpu", rates=r) for r in (rates, None))
    assert cost is not None
    assert guess is not None
    assert cost.sent == 3 * 3 * rates.sent
    assert (cost.steps, cost.memory) == (guess.steps, guess.memory)
    assert cost.seconds > 0


@pytest.mark.long
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(
    ("method", "clients"),
    [("fedavg", 80), ("ditto", 80), ("apple", 30), pytest.param("scd", 80, marks=pytest.mark.slow)],
)
def test_the_memory_of_another_device(method: str, clients: int, on_host: bool) -> None:
    """The prediction for a GPU, compared with the largest total size of tensors on a simulated device.

    Clients of APPLE mix the models of all in a round, so their memory grows with the square of their number.
    """
    predicted, really = device_memory(method, "mlp", clients, on_host)
    assert 0.8 * really < predicted < 1.35 * really


GPU_LIKE = Settings(
    method="fedavg", dataset="digits", partition="iid", clients=4, model="logistic", batch_size=10, protocol="paper"
)


def test_a_rate_of_steps_that_were_never_recorded_is_known_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a simulated device, for which there is no backend: eight rounds for warming up, and two that are timed."""
    rounds = list[int]()
    advance = Federation.advance
    monkeypatch.setattr(Federation, "advance", lambda self: (advance(self), rounds.append(self.version))[0])
    work = CellWork.of(GPU_LIKE.model_copy(update={"partition_options": {}}), Path("data"))
    assert work is not None
    few = replace(work, shares=work.shares._replace(train=20), steps=2)
    with SecondDevice():
        rates = measured_rates(few, NAME)
    assert not rates.recorded
    assert len(rounds) == 8 + 2


def test_rounds_are_timed_once_all_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third call and all later ones are on a recording; a GPU's path, on the processor."""
    monkeypatch.setattr(backends, "_RECORD_AFTER", 2)
    federation = stand_in(GPU_LIKE, DataSize((1, 8, 8), 10, 0, 0), ClientShares(4, 10, 0, 2, 0), executor="cohort")
    warm_up(federation, "cuda")
    calls = federation.engine.calls
    assert 0 < calls[backends.EAGER] < calls.total()
    federation.advance()
    assert federation.engine.calls[backends.EAGER] == calls[backends.EAGER]


def test_on_a_gpu_rounds_of_as_many_clients_and_batches_are_timed_as_the_cell_has() -> None:
    """Where there is time, as for 100 ResNet-18 of which a step takes 0.3 s of a core; 1,000 clients get fewer."""
    settings = Settings(method="fedavg", dataset="cifar10", partition="iid", clients=100, model="resnet18", steps=10)
    work = CellWork.of(settings, Path("data"))
    assert work is not None
    few, cut = fewer(work, "cuda")
    assert (few.clients, few.steps, cut.train) == (100, 10, work.shares.train)
    on_a_core, _ = fewer(work, "cpu")
    assert on_a_core.clients < 10
    assert on_a_core.steps == 1
    many, _ = fewer(replace(work, selected=1000), "cuda")
    assert many.clients == 128
