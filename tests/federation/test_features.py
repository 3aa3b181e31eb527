"""Features of a body that is frozen as a whole take the samples' place, with the results of a cell without them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.data import Partition, noise
from bench.federation import cell as cells
from bench.federation.features import can_take_their_place, reads_inputs_by_models_only
from bench.federation.federation import Federation
from bench.method import METHODS
from bench.model_call import Forward
from bench.models.factory import build
from bench.plugin import load_file
from bench.rng import generator
from bench.settings import Executor, Settings
from bench.store.features import FeatureFiles
from tests.engine.problems import OF_ANY_MODEL, assert_same, everything, run, toy, toy_data

BODY: dict[str, Any] = {"model": "test_norm", "frozen": ("inner", "norm")}


@pytest.mark.parametrize("method", OF_ANY_MODEL)
def test_results_are_those_without_features(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round for round, in both executors, and what travels; heads differ by rounding only."""
    executors: tuple[Executor, ...] = ("sequential", "cohort")
    for executor in executors:
        on = toy(method, executor=executor, **BODY)
        with monkeypatch.context() as patch:
            patch.setattr(cells, "can_take_their_place", lambda settings, net: False)
            off = toy(method, executor=executor, **BODY)
        assert on.on_features == reads_inputs_by_models_only(method)
        assert not off.on_features
        for _ in range(2):
            a, b = run(on, 1), run(off, 1)
            assert [{**row, "value": 0} for row in a.metrics] == [{**row, "value": 0} for row in b.metrics]
            for row, other in zip(a.metrics, b.metrics, strict=True):
                assert row["value"] == pytest.approx(other["value"], rel=1e-9, abs=1e-12)
        assert on.ledger == off.ledger
        assert on.work == off.work
        assert_same(everything(on), everything(off), tolerance=1e-9)


def test_features_are_those_of_the_frozen_body() -> None:
    """Public samples have features, too; and the head starts from its draw as a part of the whole."""
    federation = toy("feddf", **BODY)
    whole, data, public = federation.server._whole_model(), toy_data(), toy_data(seed=9)
    for pool, samples in ((federation.device_data.local, data), (federation.device_data.public, public)):
        assert pool is not None
        x = torch.from_numpy(samples.x).double()
        torch.testing.assert_close(pool.x, Forward().features(whole, x, stats="frozen"), rtol=1e-12, atol=1e-12)
        assert torch.equal(pool.y, torch.from_numpy(samples.y))
    assert torch.equal(federation.server.initial_model().weights, whole.part("head").weights)


def test_only_the_head_may_train_and_nothing_may_change_the_samples() -> None:
    """A frozen part of the head stays, too."""
    net = build("mlp", (4,), 3, {"hidden": 6})

    def can(**changes: Any) -> bool:
        return can_take_their_place(Settings(**{"method": "fedavg", "frozen": ("body",)} | changes), net)

    assert can()
    assert can(client_models=("mlp", "mlp"))
    for changes in (
        {"frozen": ("body.fc1.weight",)}, {"frozen": ()}, {"frozen": ("head.bias",)}, {"augment": "crop_flip"},
        {"client_models": ("mlp", "logistic")}, {"method": "fedgen"},
    ):  # fmt: skip
        assert not can(**changes)
    federation = toy("fedavg", model="test_norm", frozen=("inner", "norm", "head.bias"))
    start = federation.server.initial_model()
    assert federation.on_features
    assert [e.name for e in start.spec.frozen] == ["head.bias"]
    run(federation, 2)
    assert federation.server.state["model"].spec.d == 3 * 6


def test_a_body_whose_features_depend_on_the_batch_is_computed_in_every_step() -> None:
    net = nn.Module()
    net.add_module("norm", nn.BatchNorm1d(4, track_running_stats=False))
    net.add_module("head", nn.Linear(4, 3))
    assert not can_take_their_place(Settings(method="fedavg", frozen=("norm",)), net)


READS = {
    "odd": ("batch.x.mean()", False),
    "a sum of samples": ("model(w, batch.x + batch.x.flip(0))", False),
    "a name": ("model(w, batch.x)", True),
    "by features": ("model.features(w, batch.x).sum() + model.head(w, z)", True),
    "as a keyword": ("model(w, x=batch.x)", False),
    "kept": ("(lambda x: x)(batch.x)", False),
    "by another call": ("model.call('forward', w, batch.x)", False),
    "unseen": ("getattr(batch, 'x')", False),
    "in a copy": ("replace(batch, weight=0)", False),
}


@pytest.mark.parametrize("case", READS)
def test_who_reads_samples_otherwise_is_known_by_the_code(case: str, tmp_path: Path) -> None:
    expression, allowed = READS[case]
    name = f"odd_reader_{case.replace(' ', '_')}"
    file = tmp_path / f"{name}.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from bench.method import METHODS, Batch, Method\n"
        f"def loss(model, values, batch: Batch, ctx):\n    w, z = values['w'], 0\n    return {expression}\n"
        f"@METHODS.register('{name}')\nclass Reader(Method):\n    pass\n"
    )
    load_file(file)
    assert reads_inputs_by_models_only(name) == allowed


def test_a_method_without_a_source_file_trains_on_samples() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec(
        "from bench.method import METHODS, Method\n@METHODS.register('odd_typed')\nclass Typed(Method):\n    pass\n",
        namespace,
    )
    try:
        assert not reads_inputs_by_models_only("odd_typed")
    finally:
        del METHODS._items["odd_typed"]


def test_the_key_is_of_samples_body_and_type(tmp_path: Path) -> None:
    """Two files each: of the clients' samples and of the public ones."""
    shelf = FeatureFiles(tmp_path / "cell")
    for changes in ({}, {}, {"lr": 0.3}, {"seed": 4}, {"dtype": "float32"}, {"frozen": ("inner", "norm", "head.bias")}):
        toy("fedavg", features=shelf, **{**BODY, **changes})
    assert len(list((tmp_path / "features").glob("*.npy"))) == 2 * 4


@pytest.mark.long
def test_threads_change_no_byte_of_features() -> None:
    data = noise((3, 16, 16), 3, 230, generator("tests", "features"))
    found = []
    for threads in (1, 2):
        none = np.zeros(0, np.int64)
        partition = Partition((np.arange(100), np.arange(100, 200)), (none, none), (none, none), np.arange(200, 230))
        settings = Settings(method="fedavg", model="resnet18", frozen=("body",), clients=2)
        federation = Federation(settings, dataset=data, partition=partition, public=None, threads=threads)
        found.append(federation.device_data.local.x)
    assert torch.equal(*found)
