"""Data that change while a cell is trained: who trains on what, and what is scored."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.federation import cell as cells
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.federation.scores import Evaluation
from bench.settings import Settings
from tests.engine.problems import everything

CELL: dict[str, Any] = {
    "method": "fedavg", "clients": 5, "rounds": 6, "alpha": 1.0, "model": "logistic", "lr": 0.1, "epochs": 1,
}  # fmt: skip
LABELS = [{"name": "concept_shift", "clusters": 2}]
CHANGES = [{"round": 2, "shifts": LABELS}, {"round": 4, "exchange": 1.0, "leave": [0, 0], "arrive": [4, 4]}]


def cell(**changes: Any) -> Settings:
    return Settings(**{**CELL, **changes})


def federation(**changes: Any) -> Federation:
    return Federation.of(cell(**changes))


def scores(trained: Federation, rounds: int) -> list[Evaluation]:
    evaluations = []
    for _ in range(rounds):
        trained.advance()
        evaluations.append(trained.evaluate())
    return evaluations


def same_state(first: Federation, other: Federation) -> bool:
    mine, yours = everything(first), everything(other)
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


@pytest.mark.parametrize("method", ["ditto", pytest.param("fedavg", marks=pytest.mark.long)])
def test_until_the_first_change_nothing_is_different(method: str) -> None:
    changing, steady = federation(method=method, timeline=CHANGES[:1]), federation(method=method)
    for mine, yours in zip(scores(changing, 2), scores(steady, 2), strict=True):
        assert (mine.metrics, mine.clients, mine.hits) == (yours.metrics, yours.clients, yours.hits)
    assert same_state(changing, steady)
    changing.advance()
    steady.advance()
    assert not same_state(changing, steady)


def test_after_a_change_training_is_that_of_a_cell_with_the_later_data() -> None:
    """The models of both are the same before it; one round later they are what the other data make of them."""
    changing, later = federation(timeline=CHANGES[:1]), federation(shifts=LABELS)
    scores(changing, 2)
    tensors, plain = changing.state()
    later.restore(tensors, plain)
    assert scores(changing, 1)[0].metrics == scores(later, 1)[0].metrics
    assert same_state(changing, later)


@pytest.mark.parametrize(
    "method",
    ["ifca", *(pytest.param(name, marks=pytest.mark.long) for name in ("fedavg", "local", "fedfomo", "scaffold"))],
)
def test_clients_that_are_not_there_neither_train_nor_count(method: str) -> None:
    trained = federation(method=method, timeline=CHANGES)
    evaluations = scores(trained, 6)
    for number, evaluation in enumerate(evaluations, start=1):
        there = [0, 1, 2, 3] if number <= 4 else [1, 2, 3, 4]
        assert {row["client"] for row in evaluation.clients} == set(there)
        receivers = trained.ledger[number - 1]["down_receivers"]
        assert receivers % len(there) == 0
    assert trained.server.sizes[0] == 0 < trained.server.sizes[4]
    assert trained.server.selected == [1, 2, 3, 4]


def test_a_client_that_comes_back_has_the_state_it_left_with() -> None:
    away = [{"round": 1, "leave": [1, 1]}, {"round": 3, "arrive": [1, 1]}]
    trained = federation(method="local", timeline=away)
    scores(trained, 1)
    left = trained.clients[1].state["personal"].weights.clone()
    scores(trained, 2)
    assert torch.equal(trained.clients[1].state["personal"].weights, left)
    assert 1 not in trained.clients.ids
    trained.advance()
    assert 1 in trained.clients.ids
    assert not torch.equal(trained.clients[1].state["personal"].weights, left)


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(None, id="rounds"),
        pytest.param({"name": "fedbuff", "buffer": 2}, id="arrivals", marks=pytest.mark.long),
    ],
)
def test_clients_know_their_new_samples(server: dict[str, Any] | None) -> None:
    """Also those whose round had begun before the change and ends after it."""
    change = {"round": 1, "shifts": LABELS, "exchange": 1.0}
    trained = federation(method="ditto", timeline=[change], server=server, clock="mobile")
    dataset, partition, _ = load_all(trained.settings)
    for versions, stage in zip((1, 4), partition.stages, strict=True):
        for _ in range(versions):
            trained.advance()
        for i in trained.clients.ids:
            client = trained.clients[i]
            counts = np.bincount(dataset.y[stage.train[i]], minlength=10)
            assert client.n_train == len(stage.train[i]) == trained.server.sizes[i]
            assert client.label_counts.tolist() == counts.tolist()
    assert not np.array_equal(partition.stages[0].train[0], partition.stages[1].train[0])


def by_hand(trained: Federation, stage: int, clients: list[int]) -> dict[tuple[str, str, str], float]:
    """Test accuracies of the present generic and personalized models on a stage, with torch alone."""
    _, partition, _ = load_all(trained.settings)
    tests = partition.stages[stage].test
    generic = trained.evaluator.generic(trained.version, {})
    assert generic is not None
    models = trained.evaluator.personal(trained.version)
    data = trained.engine.device_data

    def right(model: Any, at: Any) -> float:
        x, y = data.local.take(torch.from_numpy(at))
        weight, bias = (model.tensors()[f"head.{name}"] for name in ("weight", "bias"))
        return float(((x.flatten(1) @ weight.T + bias).argmax(1) == y).double().mean())

    sizes = np.array([len(partition.stages[stage].train[i]) for i in clients], float)
    found = {}
    for metric, of in (("gm", dict.fromkeys(clients, generic)), ("pm", models)):
        each = np.array([right(of[i], tests[i]) for i in clients])
        found[metric, "local", "equal"] = float(each.mean())
        found[metric, "local", "train_size"] = float(each @ sizes / sizes.sum())
    return found


def test_models_are_scored_before_and_after_each_change_and_on_all_that_was() -> None:
    trained = federation(method="ditto", timeline=CHANGES, lr=0.05)
    evaluations = scores(trained, 2)
    assert [len(evaluation.changes) > 0 for evaluation in evaluations] == [False, True]
    assert {row["stage"] for row in evaluations[1].changes} == {0, 1}
    rows = {
        (row["stage"], row["metric"], row["on"], row["mean"]): row["value"]
        for row in evaluations[1].changes
        if row["quantity"] == "accuracy"
    }
    for stage in (0, 1):
        for (metric, on, mean), value in by_hand(trained, stage, [0, 1, 2, 3]).items():
            assert rows[stage, metric, on, mean] == pytest.approx(value, abs=1e-12)
    own = {(r["metric"], r["on"], r["mean"], r["quantity"]): r["value"] for r in evaluations[1].metrics
           if r["split"] == "test"}  # fmt: skip
    for row in evaluations[1].changes:
        if row["stage"] == 0 and row["metric"] in ("gm", "pm"):
            assert row["value"] == own[row["metric"], row["on"], row["mean"], row["quantity"]]
    later = scores(trained, 4)
    assert [sorted({row["stage"] for row in e.changes}) for e in later] == [[], [0, 1, 2], [], [0, 1, 2]]
    both = [1, 2, 3]  # 0 has left, 4 was not there
    value = next(
        row["value"] for row in later[3].changes
        if (row["stage"], row["metric"], row["mean"], row["quantity"]) == (0, "pm", "equal", "accuracy")
    )  # fmt: skip
    assert value == pytest.approx(by_hand(trained, 0, both)["pm", "local", "equal"], abs=1e-12)


STOPS: dict[str, dict[str, Any]] = {
    "local": {}, "ditto": {"participation": 0.5}, "fedavg": {"server": {"name": "fedbuff", "buffer": 2}},
    "spfl": {"timeline": CHANGES[:1]},
}  # fmt: skip
QUICK = ("ditto", 2)


@pytest.mark.parametrize(
    ("method", "at"),
    [
        pytest.param(method, at, marks=[] if (method, at) == QUICK else pytest.mark.long)
        for method in STOPS
        for at in (2, 4, 5)
    ],
)
def test_it_goes_on_from_a_checkpoint_across_a_change(method: str, at: int) -> None:
    settings = {"timeline": CHANGES, **STOPS[method], "method": method, "clock": "mobile"}
    straight, first, second = (federation(**settings) for _ in range(3))
    expected = scores(straight, 6)
    scores(first, at)
    second.restore(*first.state())
    assert second.evaluate().metrics == expected[at - 1].metrics
    for mine, yours in zip(scores(second, 6 - at), expected[at:], strict=True):
        assert mine.metrics == yours.metrics
        assert mine.changes == yours.changes
    assert same_state(straight, second)
    assert straight.ledger == second.ledger


@pytest.mark.parametrize(
    "method", ["fedah", *(pytest.param(name, marks=pytest.mark.long) for name in ("metafed", "pefll"))]
)
def test_batches_are_as_large_as_the_data_of_their_stage_allow(method: str) -> None:
    """What an evaluation before a change has trained is planned anew after it, as in a run that was stopped there."""
    growing = {"clients": 4, "rounds": 2, "batch_size": 1000, "timeline": [{"round": 1, "add_classes": 6}]}
    straight, resumed = (federation(method=method, **growing) for _ in range(2))
    scores(straight, 1)
    resumed.restore(*straight.state())
    before = straight.engine.device_data.largest
    after = [scores(trained, 1)[0].metrics for trained in (straight, resumed)]
    assert straight.engine.device_data.largest > before
    assert after[0] == after[1]
    assert straight.work == resumed.work
    assert same_state(straight, resumed)


def test_features_of_a_frozen_body_follow_inputs_that_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """The features of all stages are computed; results are those of a cell that computes them at each step."""
    frozen: dict[str, Any] = {
        "model": "mlp", "model_options": {"hidden": 6}, "frozen": ["body"], "dtype": "float64",
        "timeline": [{"round": 1, "shifts": [{"name": "rotation", "groups": 2}]}], "rounds": 3,
    }  # fmt: skip
    on = federation(**frozen)
    with monkeypatch.context() as patch:
        patch.setattr(cells, "can_take_their_place", lambda settings, net: False)
        off = federation(**frozen)
    assert (on.on_features, off.on_features) == (True, False)
    for mine, yours in zip(scores(on, 3), scores(off, 3), strict=True):
        assert [r["value"] for r in mine.metrics + mine.changes] == pytest.approx(
            [r["value"] for r in yours.metrics + yours.changes], abs=1e-9
        )
