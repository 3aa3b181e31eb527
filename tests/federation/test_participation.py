"""Clients that are not selected, new clients, and augmented images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Dataset
from bench.engine.batches import CROPS
from bench.engine.device_data import Pool
from bench.engine.programs import Sent
from bench.errors import UserError
from bench.federation.participants import buffers_of, mean_of_models, with_kept
from bench.params import Params
from tests.engine.problems import EVERY_METHOD, generic, numbered_model, personal, run, toy

HALF: dict[str, Any] = {"participation": 0.5, "dtype": "float32"}
WITHOUT = {"ditto": {"lam": 0.0}, "scd": {"lambda_g": 0.0, "lambda_p": 0.0}}


@pytest.mark.parametrize("method", WITHOUT)
def test_broadcast_lets_every_client_train_its_personal_model_in_every_round(method: str) -> None:
    """Without the method's regularization the result equals Local's, bit for bit, although half the clients take
    part in a round."""
    idle = toy(method, hp=WITHOUT[method], **HALF)
    sent = toy(method, hp=WITHOUT[method], unselected="broadcast", **HALF)
    local = toy("local", dtype="float32")
    for federation in (idle, sent, local):
        run(federation, 3)
    reference = personal(local)
    assert all(torch.equal(w, reference[i]) for i, w in personal(sent).items())
    assert not all(torch.equal(w, reference[i]) for i, w in personal(idle).items())
    assert torch.equal(generic(idle), generic(sent))
    d = 4 * sent.server.initial_model().spec.d
    assert [row["down_receivers"] for row in sent.ledger] == [5 * d] * 3
    assert [row["down_receivers"] for row in idle.ledger] == [2 * d] * 3
    assert [row["up"] for row in sent.ledger] == [row["up"] for row in idle.ledger]


def test_cap_stops_at_its_limit() -> None:
    """A cap of 0 steps equals `idle`. A high cap trains on, from the last received model. A never selected client
    stays idle."""

    def models(**settings: Any) -> dict[int, torch.Tensor]:
        federation = toy("ditto", **{**HALF, **settings})
        run(federation, 3)
        return personal(federation)

    idle = models()
    none, some, much = (models(unselected="cap", unselected_steps=steps) for steps in (0, 1, 1000))
    assert all(torch.equal(idle[i], none[i]) for i in idle)
    assert any(not torch.equal(idle[i], some[i]) for i in idle)
    assert any(not torch.equal(much[i], some[i]) for i in idle)
    selected = {i for v in range(3) for i in _selected("ditto", v)}
    start = toy("ditto", **HALF).server.initial_model().weights
    for i in set(idle) - selected:
        assert torch.equal(much[i], start)


def test_cap_cuts_the_training_in_which_it_is_reached() -> None:
    """Ten samples are five steps per epoch, so that the third step of a personal training is its last."""
    settings: dict[str, Any] = {"sizes": [10, 10, 10], "participation": 1 / 3, "batch_size": 2, "epochs": 1}
    capped = toy("ditto", unselected="cap", unselected_steps=3, **settings)
    run(capped, 6)
    seen = {i for version in range(6) for i in _selected("ditto", version, **settings)}
    idle = seen - set(_selected("ditto", 5, **settings))
    assert idle
    assert {capped.unselected.steps[i] for i in idle} == {3}


def test_personal_training_of_clients_that_are_not_selected_takes_its_time() -> None:
    """The slow one of two clients is not selected: it trains 6 samples at 1 per second, after a download of half a
    second."""
    settings: dict[str, Any] = {"sizes": [6, 6], "participation": 0.5, "batch_size": 3, "epochs": 1}
    (first,) = _selected("ditto", 0, **settings)
    speeds = [100.0 if i == first else 1.0 for i in range(2)]
    size = toy("ditto").server.initial_model().weights.nbytes
    clock = {"samples_per_second": speeds, "uplink": 1e12, "downlink": 2.0 * size}
    hp = {"personal_epochs": 1}
    federation = toy("ditto", hp=hp, unselected="broadcast", clock=clock, **settings)
    federation.advance()
    assert federation.ledger[0]["settled"] == pytest.approx(6.5)
    assert federation.ledger[0]["seconds"] == pytest.approx(0.5 + 6 / 100)
    own = {span.kind: (span.start, span.end) for span in federation.spans if span.client != first}
    assert own == {
        "download": (0, pytest.approx(0.5)),
        "personal training": (pytest.approx(0.5), pytest.approx(6.5)),
    }


def test_the_mean_of_personalized_models_keeps_its_own_running_statistics() -> None:
    """FedBABU's fine-tuning for evaluation changes these statistics; those that the clients keep are from an earlier
    state."""
    federation = toy("fedbabu", model="test_norm", batchnorm="local")
    run(federation, 2)
    personal_models = federation.evaluator.personal(2)
    found = federation.evaluator.generic(2, personal_models)
    expected = mean_of_models(personal_models, federation.server.sizes)
    assert found is not None
    assert expected is not None
    assert torch.equal(found.buffers, expected.buffers)
    assert not torch.equal(federation.clients.mean_buffers(found).buffers, found.buffers)


def test_running_statistics_that_clients_keep_are_averaged_by_samples() -> None:
    """For the generic model, where no statistics travel."""
    federation = toy("fedavg", model="test_norm", batchnorm="local")
    run(federation, 1)
    clients, sizes = federation.clients, federation.server.sizes
    generic = federation.server.state["model"]
    kept = {i: clients.down(i)["model"].buffers for i in sizes}
    assert len({sizes[i] for i in kept}) > 1
    expected = sum(sizes[i] * buffers for i, buffers in kept.items()) / sum(sizes[i] for i in kept)
    torch.testing.assert_close(clients.mean_buffers(generic).buffers, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("method", "hp"), [("ccvr", {}), ("fedadmm", {}), ("feddrift", {}), ("pfedsim", {"warmup": 1})]
)
def test_running_statistics_stay_with_clients_whatever_name_their_model_travels_by(
    method: str, hp: dict[str, Any]
) -> None:
    """These methods send it by another name than they receive it by, a part of it, or in an exchange."""
    federation = toy(method, sizes=[8, 6], hp=hp, model="test_norm", batchnorm="local")
    for _ in range(3):
        federation.advance()
    last = {i: w.buffers for i, w in federation.local_models.items()}
    assert not torch.equal(last[0], last[1])
    for i, buffers in last.items():
        received = [w for w in federation.clients.down(i).values() if isinstance(w, Params)]
        assert received
        assert all(torch.equal(w.buffers, buffers) for w in received)


def test_a_reply_comes_with_the_running_statistics_that_the_client_sent() -> None:
    federation = toy("ccvr", sizes=[8, 6], model="test_norm", batchnorm="local")
    computed = federation.client_rounds.compute([0, 1], 0, 0.0)
    exchanges = [event for r in computed for event in r.program.events if isinstance(event, Sent) and event.waits]
    sent, replies = [e.values["model"] for e in exchanges], [e.reply["model"] for e in exchanges]
    assert torch.equal(replies[0].weights, replies[1].weights)
    assert not torch.equal(sent[0].buffers, sent[1].buffers)
    assert all(torch.equal(mine.buffers, back.buffers) for mine, back in zip(sent, replies, strict=True))


def test_kept_statistics_go_into_their_name_else_into_their_architecture() -> None:
    w = numbered_model()
    old, new = (w.with_buffers(torch.full_like(w.buffers, value)) for value in (1.0, 2.0))
    other = Params(w.weights, w.buffers, replace(w.spec, arch="another"))
    body = w.without("head")
    received = {"model": w, "body": body, "head": w.part("head"), "other": other, "number": 3}
    kept = buffers_of({"model": old, "earlier": old, "later": new, "head": w.part("head")})
    values = with_kept(received, kept)
    assert torch.equal(values["model"].buffers, old.buffers)
    assert torch.equal(values["body"].buffers, new.without("head").buffers)
    assert [values[name] for name in ("head", "other", "number")] == [received["head"], other, 3]
    assert torch.equal(values["body"].weights, body.weights)


def _selected(method: str, version: int, **settings: Any) -> list[int]:
    federation = toy(method, **(settings or HALF))
    federation.version = version
    return federation.selector.select(federation.version)


def test_new_clients_take_no_part_and_adapt_at_the_end() -> None:
    federation = toy("fedavg", new_clients=2, rounds=3, new_client_epochs=(0, 3))
    new = federation.new
    early = run(federation, 2)
    last = run(federation, 1)
    assert {m["metric"] for m in early.metrics} == {"gm", "pm", "lm"}
    assert {m["metric"] for m in last.metrics} == {"gm", "pm", "lm", "new0", "new3"}
    scored = {(m["metric"]): {r["client"] for r in last.clients if r["metric"] == m["metric"]} for m in last.metrics}
    assert scored["new0"] == scored["new3"] == set(new)
    assert not scored["gm" if "gm" in scored else "pm"] & set(new)
    sizes = [13, 7, 1, 0, 9, 5]
    others = toy("fedavg", sizes=[0 if i in new else n for i, n in enumerate(sizes)])
    assert federation.server.sizes == {i: n for i, n in enumerate(sizes) if n and i not in new}
    assert others.server.sizes == federation.server.sizes
    loss = {m["metric"]: m["value"] for m in last.metrics if m["quantity"] == "loss" and m["mean"] == "train_size"}
    assert loss["new3"] != loss["new0"]


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_new_clients_are_scored_by_every_method(method: str) -> None:
    """New clients are scored after the last round, so an error there would waste a whole training."""
    federation = toy(method, new_clients=1, rounds=1, new_client_epochs=(0, 1))
    assert {m["metric"] for m in run(federation, 1).metrics} >= {"new0", "new1"}


def test_more_new_clients_than_clients_is_an_error() -> None:
    with pytest.raises(UserError, match="nobody is left to train"):
        toy("fedavg", new_clients=5)


def images() -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6, 3, 8, 8), np.uint8)
    return Dataset("images", x, np.zeros(6, np.int64), 4, 2, (0.4, 0.5, 0.6), (0.2, 0.2, 0.3), "")


def test_crops_and_mirrors_are_those_of_the_raw_image() -> None:
    data = images()
    pool = Pool.of(data, torch.device("cpu"), torch.float64)
    codes = torch.tensor([80, 81, 0, 161, 37, 100])
    found = pool.crop_flip(pool.take(torch.arange(6))[0], codes).numpy()
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (data.mean, data.std))
    for image, code, ours in zip(data.x, codes.tolist(), found, strict=True):
        top, left = code // 2 // 9, code // 2 % 9
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))[:, top : top + 8, left : left + 8]
        expected = padded[:, :, ::-1] if code % 2 else padded
        np.testing.assert_allclose(ours, (expected / 255 - mean) / std, rtol=1e-9, atol=1e-9)
    assert int(codes.max()) < CROPS
    assert np.allclose(found[0], pool.take(torch.arange(1))[0].numpy())  # code 80 leaves an image unchanged


def test_local_of_the_selected_clients_alone() -> None:
    """As in PGFed's code, a client that was never selected keeps the initial model; by default all clients always
    train."""
    few, everybody = toy("local", hp={"selected_only": True}, **HALF), toy("local", **HALF)
    run(few, 1)
    run(everybody, 1)
    start = few.server.initial_model().weights
    trained = {i for i, w in personal(few).items() if not torch.equal(w, start)}
    assert trained == set(few.server.selected)
    assert not any(torch.equal(w, start) for w in personal(everybody).values())
    assert few.work["steps"] < everybody.work["steps"]


@pytest.mark.parametrize("method", ["fedrep", "fedavg", "local"])
def test_new_clients_can_all_start_from_the_generic_model(method: str) -> None:
    """Figure 3 of the SCD paper: the whole generic model is fine-tuned, also with FedRep, whose personal part is the
    head."""
    scores = {}
    for start in ("method", "generic"):
        federation = toy(method, new_clients=2, new_client_epochs=(0, 3), new_client_start=start, rounds=2)
        found = run(federation, 2)
        scores[start] = [row["value"] for row in found.metrics if row["metric"].startswith("new")]
    assert len(scores["generic"]) == len(scores["method"]) > 0
    assert (scores["generic"] == scores["method"]) is (method == "fedavg")
