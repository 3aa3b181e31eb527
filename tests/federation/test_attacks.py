"""Attacks in a federation: who is malicious, what arrives, what is scored, and what is refused."""

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bench.config.validation import check_setting
from bench.errors import UserError
from bench.federation.attacks import malicious_clients, poison
from bench.federation.federation import Federation
from bench.params import Params
from bench.plugin import METHODS
from bench.settings import AttackPart, Settings
from docs.examples.attacks_and_servers import ATTACKS, HONEST, MIN_MAX, SERVERS, SIGN_FLIP, accuracy
from tests.engine.problems import EVERY_METHOD, everything, run, toy, toy_data, toy_partition
from tests.federation.helpers import FORGED, SIZES, attack


def attacked(method: str, name: str, **settings: Any) -> Federation:
    return toy(method, attack=attack(name), **{"sizes": SIZES, **settings})


def test_malicious_clients_are_drawn_by_the_seed_among_those_that_train() -> None:
    partition = toy_partition(toy_data(), [13, 7, 1, 0, 9, 5])
    settings = Settings(method="fedavg", clients=6, new_clients=1, attack=attack("sign_flip", 0.5))
    drawn = {seed: malicious_clients(settings.model_copy(update={"seed": seed}), partition) or [] for seed in range(40)}
    assert {len(clients) for clients in drawn.values()} == {2}
    assert {i for clients in drawn.values() for i in clients} == {0, 1, 2, 4, 5}
    other = settings.model_copy(update={"method": "ditto", "attack": AttackPart(**attack("noise", 0.5))})
    assert malicious_clients(other, partition) == drawn[0]
    held_out = replace(partition, new=(0,))
    assert all(
        0 not in (malicious_clients(settings.model_copy(update={"seed": seed}), held_out) or []) for seed in range(40)
    )


@pytest.mark.parametrize(("share", "count"), [(0.05, 0), (0.95, 5)])
def test_a_share_of_nobody_or_of_all_is_refused(share: float, count: int) -> None:
    with pytest.raises(UserError, match=f"share = {share} of 5 clients that train is {count}; at least one should be"):
        toy("fedavg", sizes=SIZES, attack=attack("sign_flip", share))


def test_benign_means_are_weighted_over_the_others() -> None:
    """By hand from the clients' rows; a client without samples of a split is in no mean."""
    federation = attacked("ditto", "label_flip")
    evaluation = run(federation, 2)
    assert federation.malicious is not None
    assert len(federation.malicious) == 2
    for metric in ("gm", "pm"):
        rows = [r for r in evaluation.clients if (r["metric"], r["split"]) == (metric, "test")]
        kept = [r for r in rows if r["client"] not in federation.malicious]
        weights = [SIZES[r["client"]] for r in kept]
        expected = sum(w * r["correct"] / r["samples"] for w, r in zip(weights, kept, strict=True)) / sum(weights)
        (row,) = (
            r for r in evaluation.metrics
            if (r["metric"], r["mean"], r["split"], r["quantity"]) == (metric, "benign", "test", "accuracy")
        )  # fmt: skip
        assert row["on"] == "local"
        assert row["value"] == pytest.approx(expected)


def sent(federation: Federation) -> dict[int, dict[str, Any]]:
    """What the server gets of the first round, by client."""
    flights = federation.start(list(federation.clients.ids))
    return {f.client.id: f.messages[-1][1].values for f in flights}


@pytest.mark.parametrize("name", FORGED)
def test_lies_take_the_place_of_updates_and_nothing_else(name: str) -> None:
    """Against the attack itself on the honest updates; running statistics and benign clients are honest."""
    common: dict[str, Any] = {"model": "test_norm", "sizes": SIZES}
    federation, plain = attacked("fedavg", name, **common), toy("fedavg", **common)
    w = plain.server.initial_model().weights
    lies, honest = sent(federation), sent(plain)
    malicious = federation.malicious or []
    updates = {i: values["model"].weights - w for i, values in honest.items()}
    kind = federation.forger and federation.forger._attack
    assert kind is not None
    benign = torch.stack([updates[i] for i in updates if i not in malicious])
    for i, values in lies.items():
        assert torch.equal(values["model"].buffers, honest[i]["model"].buffers)
        if i not in malicious:
            assert torch.equal(values["model"].weights, honest[i]["model"].weights)
    if name != "noise":  # whose draws are tested below
        own = torch.stack([updates[i] for i in malicious])
        expected = kind.forge(own, benign, np.random.default_rng(0))
        for i, update in zip(malicious, expected, strict=True):
            torch.testing.assert_close(lies[i]["model"].weights, w + update)


def test_an_attack_comes_after_the_channel_and_is_sent_in_as_many_bytes() -> None:
    channel = ({"name": "top_k", "share": 0.1},)
    federation = attacked("fedavg", "noise", channel=channel)
    w = federation.server.initial_model().weights
    changed = {i: int((values["model"].weights != w).sum()) for i, values in sent(federation).items()}
    assert {i for i, count in changed.items() if count == w.numel()} == set(federation.malicious or [])
    lying, honest = attacked("fedavg", "noise", channel=channel), toy("fedavg", channel=channel, sizes=SIZES)
    lying.advance()
    honest.advance()
    assert lying.ledger == honest.ledger


def test_an_exchange_is_forged_too() -> None:
    """CCVR's clients exchange their models in the last round; the mean of what the server gets has lies in it."""
    got: dict[bool, list[Any]] = {}
    malicious: set[int] = set()
    for lying in (True, False):
        federation = toy("ccvr", sizes=SIZES, rounds=1, attack=attack("scale") if lying else None)
        malicious = set(federation.malicious or []) if lying else malicious
        got[lying] = []
        answer = federation.method.reply

        def record(server: Any, messages: Any, answer: Any = answer, into: list[Any] = got[lying]) -> Any:
            into.append({m.client: m.values for m in messages})
            return answer(server, messages)

        federation.method.reply = record  # type: ignore[method-assign]
        federation.advance()
    for lie, honest in zip(got[True], got[False], strict=True):
        different = {
            i for i, values in lie.items() for name, v in values.items()
            if isinstance(v, Params) and not torch.equal(v.weights, honest[i][name].weights)
        }  # fmt: skip
        models = any(isinstance(v, Params) for values in honest.values() for v in values.values())
        assert different == (malicious if models else set())
    assert got[True]


def test_draws_of_noise_have_addresses() -> None:
    """Clients and rounds have draws of their own, and the same ones in another federation."""
    federation, again = attacked("fedavg", "noise"), attacked("fedavg", "noise")
    first, second = sent(federation), sent(again)
    malicious = federation.malicious or []
    assert all(torch.equal(first[i]["model"].weights, second[i]["model"].weights) for i in malicious)
    federation.version = again.version = 1
    later = sent(federation)
    seen = {tuple(values[i]["model"].weights.tolist()) for values in (first, later) for i in malicious}
    assert len(seen) == 2 * len(malicious)


def test_rounds_without_malicious_or_without_benign_clients_go_on() -> None:
    for name in FORGED:
        federation = attacked("fedavg", name, participation=0.2)
        run(federation, 6)
        assert federation.version == 6


@pytest.mark.parametrize("name", ["alie", "min_max", "ipm"])
def test_colluding_needs_rounds(name: str) -> None:
    with pytest.raises(UserError, match=f"attack '{name}' needs the updates of a round's clients, and the server of"):
        attacked("fedbuff", name)


def test_lies_leave_out_their_part_of_the_noise_on_a_sum() -> None:
    """Epsilon counts the parts of all senders, and some attacks look at single updates. Liars by data add theirs."""
    channel = {on: tuple(check_setting("channel", ["clip", {"name": "gaussian", "on": on}])) for on in ("sum", "each")}
    for name in FORGED:
        with pytest.raises(
            UserError, match=f"attack '{name}': .* noise on the sum of .* or take an attack by data: label"
        ):
            attacked("fedavg", name, channel=channel["sum"])
    attacked("fedavg", "noise", channel=channel["each"]).advance()
    attacked("fedavg", "label_flip", channel=channel["sum"]).advance()
    toy("fedavg", sizes=SIZES, channel=channel["sum"], attack=attack("noise", 0.0)).advance()


def test_a_method_without_messages_has_attacks_by_data_only() -> None:
    with pytest.raises(UserError, match="attack 'sign_flip': the method 'centralized' sends no messages; take an atta"):
        attacked("centralized", "sign_flip")
    for method in ("centralized", "local", "fedproto"):  # of which the latter two send no model
        attacked(method, "label_flip").advance()


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_is_attacked_or_refused(method: str) -> None:
    if METHODS.get(method).bound:
        with pytest.raises(UserError, match="sends no messages"):
            attacked(method, "scale")
        return
    federation, plain = attacked(method, "scale"), toy(method, sizes=SIZES)
    with contextlib.suppress(UserError):
        run(federation, 1)
    if not federation.version:
        with pytest.raises(UserError, match="take an attack by data"):
            attacked(method, "scale").advance()
        return
    run(plain, 1)
    lies, honest = everything(federation), everything(plain)
    assert any(not torch.equal(lies[name], honest[name]) for name in lies if name in honest)


def test_poison_is_in_the_training_samples_of_malicious_clients_only() -> None:
    data = toy_data()
    partition = toy_partition(data, SIZES, validation=2)
    settings = Settings(method="fedavg", clients=5, seed=3, attack=attack("label_flip"))
    poisoned = poison(settings, data, partition)
    malicious = malicious_clients(settings, partition) or []
    at = np.concatenate([partition.train[i] for i in malicious])
    assert (poisoned.y[at] == data.num_classes - 1 - data.y[at]).all()
    others = np.setdiff1d(np.arange(len(data.y)), at)
    assert (poisoned.y[others] == data.y[others]).all()
    assert (poisoned.x == data.x).all()
    assert poison(settings.model_copy(update={"attack": AttackPart(**attack("noise"))}), data, partition) is data


@pytest.mark.slow
def test_attacks_lower_fedavg_and_robust_servers_win_some_back() -> None:
    """On digits; the known failure, too: under min-max Krum's choices do worse than the mean."""
    honest, attacked_mean = accuracy(HONEST), accuracy(SIGN_FLIP)
    for lie in ATTACKS:
        if lie not in (HONEST, {"name": "alie"}):  # whose own z is small here
            assert accuracy(lie) < honest - 0.5, lie
    for server in SERVERS:
        assert accuracy(SIGN_FLIP, server) > attacked_mean + 10, server
    for server in ("krum", "multi_krum"):
        assert accuracy(MIN_MAX, server) < accuracy(MIN_MAX) - 5, server
