"""FedMD against its formulas: transfer learning once, then digest and revisit on a fresh public subset per round."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Dataset
from bench.engine.batches import steps_per_epoch
from bench.federation.federation import Federation
from bench.method import Feed, Train, Trained
from bench.rng import generator
from methods.fedmd import FedMD, Hyper
from tests.engine.problems import BOTH_MODELS, assert_same_personal, personal, run, toy, toy_data
from tests.methods.reference import (
    LR,
    PLAIN,
    SEED,
    Array,
    backward,
    batches,
    descend,
    initial,
    local_batches,
    logits,
    near,
)
from tests.methods.resume import assert_resumes

SIZES = [9, 5, 7]
CLASSES = 5  # of the public samples; the clients have 3
PUBLIC = toy_data(samples=12, classes=CLASSES, seed=9)
X, Y = PUBLIC.x.astype(np.float64), np.eye(CLASSES)[PUBLIC.y]
SUBSET, BATCH = 7, 5
NOTHING = {"pretrain_epochs": 0, "digest_epochs": 0}


def steps(n: int, width: int, epochs: int) -> int:
    return epochs * steps_per_epoch(n, width, batch_statistics=False)


def transferred(federation: Federation, i: int, epochs: int) -> Array:
    """The body learned with a head for the public classes, the usual head put in, and both trained on own data."""
    public = federation.server.initial_model(i, classes=CLASSES).weights.numpy()
    drawn = batches(Feed("public"), len(X), len(X), steps(len(X), PLAIN["batch_size"], epochs), 0, i)
    public = descend(public, ((X[p], Y[p]) for p in drawn))
    return descend(np.concatenate([public[:12], initial(federation)[12:]]), local_batches(SIZES, 0, i, epochs))


def digested(w: Array, x: Array, consensus: Array, distance: str, t: int, i: int) -> Array:
    """Two epochs over the round's subset."""
    for p in batches(Feed("public", BATCH), len(x), len(x), steps(len(x), BATCH, 2), t, i):
        gap = logits(w, x[p]) - consensus[p]
        slope = 2 * gap if distance == "mse" else np.sign(gap) * (np.abs(gap) > 1e-7)
        w = w - LR * backward(w, x[p], slope / gap.size)
    return w


@pytest.mark.parametrize("epochs", [pytest.param(0, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("distance", ["l1", "mse"])
def test_follows_the_formulas(distance: str, epochs: int) -> None:
    """Three clients, three rounds: transfer once, then scores, their mean, digest, revisit."""
    hp = {"pretrain_epochs": epochs, "subset": SUBSET, "distance": distance, "digest_epochs": 2, "digest_batch": BATCH}
    federation = toy("fedmd", sizes=SIZES, public=PUBLIC, hp=hp, **PLAIN)
    own = [transferred(federation, i, epochs) if epochs else initial(federation) for i in range(len(SIZES))]
    for t in range(3):
        run(federation, 1)
        x = X[np.sort(generator("subset", SEED, t).choice(len(X), SUBSET, replace=False))]
        consensus = np.mean([logits(w, x) for w in own], axis=0)
        for i, w in enumerate(own):
            own[i] = descend(digested(w, x, consensus, distance, t, i), local_batches(SIZES, t, i))
            near(personal(federation)[i], own[i])


@pytest.mark.parametrize("model", BOTH_MODELS)
def test_without_transfer_and_digest_it_is_local(model: str) -> None:
    """Bit for bit, running statistics included, whatever the participation; and it is announced."""
    assert Hyper(**NOTHING).degenerate() == ["digest_epochs = 0: FedMD is Local"]
    assert "transfer" in Hyper(digest_epochs=0).degenerate()[0]
    assert not Hyper(pretrain_epochs=0).degenerate()
    federation = toy("fedmd", public=PUBLIC, hp=NOTHING, model=model, participation=0.4)
    alone = toy("local", model=model)
    run(federation, 3)
    run(alone, 3)
    assert_same_personal(federation, alone)


def test_digesting_brings_the_clients_together() -> None:
    """Without it the scores on public samples are further apart."""

    def spread(epochs: int) -> float:
        federation = toy("fedmd", sizes=SIZES, public=PUBLIC, hp={"digest_epochs": epochs})
        run(federation, 5)
        return float(np.std([logits(w.numpy(), X) for w in personal(federation).values()], axis=0).mean())

    assert spread(20) < 0.8 * spread(0)


def test_transfer_learning_keeps_the_head_and_takes_the_body() -> None:
    """Public labels reach a head of their own only; what the body learned is kept, running statistics included."""
    server = toy("fedmd", public=PUBLIC, model="test_norm").server
    w, public = server.initial_model(0), server.initial_model(0, classes=CLASSES)
    assert public.tensors()["head.weight"].shape[0] == CLASSES
    torch.testing.assert_close(public.without("head").weights, w.without("head").weights, rtol=0, atol=0)
    program = FedMD(Hyper()).transfer(w, public)
    first = next(program)
    assert isinstance(first, Train)
    assert (first.values, first.feed.samples, first.epochs) == ({"w": public}, "public", 25)
    learned = public.with_weights(public.weights + 1).with_buffers(public.buffers + 2)
    second = program.send(Trained({"w": learned}, {}, 1, torch.zeros(())))
    start = second.values["w"]
    assert start.spec == w.spec
    assert torch.equal(start.part("head").weights, w.part("head").weights)
    assert torch.equal(start.without("head").weights, w.without("head").weights + 1)
    assert torch.equal(start.buffers, w.buffers + 2)
    assert (second.feed.samples, second.epochs) == ("train", 25)


def relabelled() -> Dataset:
    return replace(PUBLIC, y=(PUBLIC.y + np.arange(len(PUBLIC.y))) % CLASSES)


@pytest.mark.parametrize("epochs", [0, 1])
def test_public_labels_serve_transfer_learning_alone(epochs: int) -> None:
    """And leave nothing behind: after the first round a client has its own model and no other."""
    one, other = (toy("fedmd", public=of, hp={"pretrain_epochs": epochs}) for of in (PUBLIC, relabelled()))
    run(one, 2)
    run(other, 2)
    same = [torch.equal(w, personal(other)[i]) for i, w in personal(one).items()]
    assert same == [epochs == 0] * 5
    for i in one.clients.ids:
        assert list(one.clients[i].state) == ["personal"]
        assert one.clients[i].state["personal"].spec == one.server.initial_model(i).spec


def test_everyone_takes_part_whatever_the_participation() -> None:
    whole, half = (toy("fedmd", public=PUBLIC, participation=share) for share in (1.0, 0.4))
    run(whole, 2)
    run(half, 2)
    assert_same_personal(half, whole)


def test_a_subset_is_capped_at_the_public_set() -> None:
    """Then it is the public set, in its order."""
    whole, more = (toy("fedmd", public=PUBLIC, hp={"subset": n}) for n in (len(X), 5000))
    run(whole, 2)
    run(more, 2)
    assert_same_personal(more, whole)


def test_clients_of_two_architectures() -> None:
    """K matrices of the subset's scores up and one down, T(K+1)L_r in all; the public head never travels."""
    federation = toy("fedmd", public=PUBLIC, client_models=("test_linear", "test_norm"), hp={"subset": SUBSET})
    scores = run(federation, 3)
    assert len({w.spec for w in federation.evaluator.personal(federation.version).values()}) == 2
    assert {row["metric"] for row in scores.metrics} == {"pm", "lm"}
    assert federation.engine.fallbacks == []
    matrix = SUBSET * 3 * 8
    total = sum(row["up"] + row["down_distinct"] for row in federation.ledger)
    assert total == 3 * (5 + 1) * matrix
    assert [row["down_receivers"] for row in federation.ledger] == [5 * matrix] * 3


MIXED: dict[str, Any] = {"public": PUBLIC, "client_models": ("test_norm", "test_linear"), "hp": {"subset": SUBSET}}


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 1, 2])
def test_transfer_learning_is_once_after_a_stop_too(at: int) -> None:
    """Stopped before it, right after it and later; in float32, with running statistics."""
    assert_resumes("fedmd", MIXED | {"dtype": "float32"}, at, 3)


def test_transfer_learning_is_in_the_first_round() -> None:
    federation = toy("fedmd", sizes=SIZES, public=PUBLIC, hp={"pretrain_epochs": 2})
    taken = []
    for _ in range(3):
        run(federation, 1)
        taken.append(federation.engine.steps)
    public, own = 3 * steps(len(X), 4, 2), sum(steps(n, 4, 2) for n in SIZES)
    assert taken[0] - (taken[1] - taken[0]) == public + own
    assert taken[1] - taken[0] == taken[2] - taken[1]
