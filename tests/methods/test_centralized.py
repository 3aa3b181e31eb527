"""Centralized training: whose samples the server has, and who may not have them."""

from typing import Any

import numpy as np
import pytest

from bench.engine.device_data import SERVER
from bench.method import METHODS, Client, Feed, Method, Program, State, Train, Upload, cross_entropy
from tests.engine.problems import generic, personal, run, toy, toy_partition
from tests.methods.reference import DATA, PLAIN, X, Y, batches, descend, local_batches, near

SIZES = [9, 5]


def test_the_server_trains_on_everybody_s_samples_and_clients_fine_tune() -> None:
    federation = toy("centralized", sizes=SIZES, hp={"fine_tune_epochs": 2}, **PLAIN)
    w = federation.server.initial_model().weights.numpy()
    run(federation, 2)
    for round in range(2):
        steps = batches(Feed("pooled"), sum(SIZES), max(SIZES), 4, round, SERVER)
        w = descend(w, ((X[at], Y[at]) for at in steps))
    near(generic(federation), w)
    for i, found in personal(federation).items():
        near(found, descend(w, local_batches(SIZES, 2, i, epochs=2)))


def test_samples_of_new_clients_are_not_among_them() -> None:
    federation = toy("centralized", sizes=[9, 5, 7], new_clients=1)
    train = toy_partition(DATA, [9, 5, 7]).train
    pooled = set(federation.device_data.positions(SERVER, "pooled").tolist())
    assert len(federation.clients.ids) == 2
    assert pooled == set(np.concatenate([train[i] for i in federation.clients.ids]).tolist())


def test_participation_does_not_matter() -> None:
    whole, part = (toy("centralized", sizes=SIZES * 2, participation=share, **PLAIN) for share in (1.0, 0.5))
    run(whole, 2)
    run(part, 2)
    near(generic(whole), generic(part).numpy())


class _Curious(Method):
    """FedAvg whose clients ask for everybody's samples."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, feed=Feed("pooled"))
        yield Upload({"model": trained["w"]})


class _CuriousBound(_Curious):
    """And says that it is a bound: its server might, its clients may not."""

    bound = True


@pytest.mark.parametrize("method", [_Curious, _CuriousBound])
def test_nobody_else_has_them(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_items", {**METHODS._items, "test_curious": method})
    with pytest.raises(ValueError, match="only the server of a method that is a `bound`"):
        toy("test_curious").advance()


def test_its_scores_are_in_brackets() -> None:
    assert toy("centralized").derived == ["gm", "pm"]
    assert toy("finetune").derived == []
