"""Noise in a federation: what it adds, what it is worth, what is counted and said, and what is refused."""

import importlib.util
import json
import math
import re
from collections import Counter
from typing import Any

import pytest
import torch

from bench.config.validation import check_setting
from bench.errors import UserError
from bench.federation.channel import SentValues
from bench.federation.federation import Federation
from bench.federation.privacy import Releases, epsilon
from bench.plugin import METHODS
from bench.rng import generator
from bench.settings import Settings
from tests.engine.problems import generic, run, toy
from tests.federation.helpers import ADAPTIVE, noisy


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "printed", "digits"),
    [(1.5, 0.04, 2250, 7.32911117143, 1e-3), (1.416, 0.04, 2250, 8.0, 5e-3), (1.3562, 0.04, 2000, 8.0, 5e-3)],
)
def test_epsilon_is_what_opacus_prints(noise: float, rate: float, steps: int, printed: float, digits: float) -> None:
    """Printed in `opacus/tests/accountants_test.py`, the last two as the noise (4 digits) for a target of 8.

    It is another implementation of the same bound, and takes some orders that `dp-accounting` leaves out.
    """
    assert epsilon([(noise, rate, steps)], 1e-5) == pytest.approx(printed, abs=digits)


def test_epsilon_of_the_gaussian_mechanism_by_hand() -> None:
    """All clients in one round: Rényi divergence alpha / (2 noise^2), turned into epsilon order by order."""
    for noise in (0.5, 5.0, 80.0):
        orders = [1 + x / 10 for x in range(1, 100)] + [*range(12, 64), 64, 80, 96, 128, 192, 256, 512, 1024]
        by_hand = min(
            a / (2 * noise**2) + math.log((a - 1) / a) - (math.log(1e-5) + math.log(a)) / (a - 1) for a in orders
        )
        assert epsilon([(noise, 1.0, 1)], 1e-5) == pytest.approx(max(0.0, by_hand), rel=1e-9)
        both = epsilon([(noise, 1.0, 3), (2 * noise, 1.0, 4)], 1e-5)
        assert both == pytest.approx(epsilon([(noise / 2, 1.0, 1)], 1e-5), rel=1e-9), "3 + 4 / 4 releases are 4"


def test_epsilon_is_infinite_without_noise_and_zero_without_a_release() -> None:
    assert epsilon([(0.0, 1.0, 1)], 1e-5) == math.inf
    assert epsilon([(1.0, 0.1, 5), (0.0, 0.1, 1)], 1e-5) == math.inf


def counted(on: str, noise: float, count_noise: float | None, versions: list[list[int]], sums: int = 1) -> Any:
    """Mechanisms of versions of 4 clients, each given as the clients that sent a value, of which there are `sums`."""
    releases = Releases({"noise": noise, "on": on}, count_noise)
    for senders in versions:
        for _ in range(sums):
            if on == "sum":
                releases.add_sum()
            for client in senders if on == "each" else ():
                releases.add(client)
        releases.close(4, 0.25)
    again = Releases({"noise": noise, "on": on}, count_noise)
    again.restore(json.loads(json.dumps(releases.state()), object_hook=_with_numbers))
    assert again.mechanisms() == releases.mechanisms()
    return releases.mechanisms()


def _with_numbers(plain: dict[str, Any]) -> dict[Any, Any]:
    """Keys of clients as a checkpoint gives them back."""
    return {int(key) if key.isdigit() else key: value for key, value in plain.items()}


def test_releases_by_hand() -> None:
    everyone = [0, 1, 2, 3]
    assert counted("sum", 2.0, None, [everyone] * 3) == [(2.0, 0.25, 3)]
    assert counted("sum", 2.0, None, [everyone], sums=2) == [(pytest.approx(2 / 2**0.5), 0.25, 1)], "one release"
    assert counted("sum", 2.0, None, [[0], []]) == [(2.0, 0.25, 2)], "whoever sends something, the noise is there"
    assert counted("sum", 2.0, None, [[]], sums=0) == []
    (adaptive,) = counted("sum", 2.0, 0.5, [everyone])
    assert adaptive[0] == pytest.approx((1 / 4 + 1 / (2 * 0.5 * 4) ** 2) ** -0.5), "the bit's noise is 2, its half 1"
    assert counted("sum", 2.0, 0.0, [everyone]) == [(0.0, 0.25, 1)], "bits without noise are worth nothing"
    assert counted("each", 2.0, None, [everyone, [0, 1]]) == [(2.0, 1.0, 2)]
    assert counted("each", 0.0, None, [[0]]) == [(0.0, 1.0, 1)]


@pytest.mark.parametrize("on", ["sum", "each"])
def test_the_noise_of_a_round_is_that_of_its_addresses(on: str) -> None:
    """What the server gets is the plain clipped mean and, by hand, the noise of each client."""
    common: dict[str, Any] = {"sizes": [9, 9, 9, 9]}
    with_noise, without = (toy("fedavg", channel=noisy(on, noise), **common) for noise in (2.0, 0.0))
    with_noise.advance()
    without.advance()
    deviation = 2.0 * 0.5 / (2 if on == "sum" else 1)
    draws = [
        generator("channel", with_noise.settings.seed, 0, client, 0, "model", "gaussian").standard_normal(
            len(generic(without))
        )
        for client in range(4)
    ]
    expected = generic(without) + deviation * torch.tensor(sum(draws)) / 4
    torch.testing.assert_close(generic(with_noise), expected, rtol=0, atol=1e-12)


def test_noise_on_the_sum_weighs_all_clients_alike() -> None:
    """A client with many samples moves the mean no more than its norm over the number of clients."""
    unequal = toy("fedavg", sizes=[30, 3, 3], channel=noisy(noise=0.0, clip={"name": "clip", "norm": 1e9}), steps=1)
    unequal.advance()
    start = unequal.server.initial_model().weights
    single = []
    for version in range(3):
        sizes = [30 if i == 0 else 3 for i in range(3)]
        alone = toy("fedavg", sizes=sizes, steps=1)
        computed = alone.start([version])
        single.append(computed[0].messages[0][1]["model"].weights - start)
    torch.testing.assert_close(generic(unequal) - start, sum(single) / 3, rtol=0, atol=1e-12)


def mechanisms(federation: Federation) -> Any:
    assert federation.channel is not None
    assert federation.channel.releases is not None
    return federation.channel.releases.mechanisms()


def test_a_round_is_one_release_and_late_uploads_are_counted_with_noise_on_each() -> None:
    half = toy("fedper", channel=noisy("sum"), participation=0.5)
    assert half.settings.selection == "poisson"
    run(half, 3)
    assert mechanisms(half) == [(1.0, half.selector.count / len(half.clients.ids), 3)]
    late = toy("fedavg", channel=noisy("each"), server={"name": "fedbuff", "buffer": 2, "concurrency": 3})
    run(late, 4)
    ((noise, rate, most),) = mechanisms(late)
    assert (noise, rate) == (1.0, 1.0)
    assert 2 <= most <= 8


def on_digits(**settings: Any) -> Federation:
    common: dict[str, Any] = {"alpha": 1.0, "clients": 20, "rounds": 3, "epochs": 1, "lr": 0.1, "model": "logistic"}
    return Federation.of(Settings(method="fedavg", **{"channel": noisy("sum", 4.0), **common, **settings}))


@pytest.mark.parametrize(
    ("participation", "first", "rates"),
    [(1.0, 2, [1.0, 1.0]), pytest.param(0.5, 5, [2 / 5, 10 / 20], marks=pytest.mark.long)],
)
def test_the_sampling_rate_is_that_of_the_clients_of_a_stage(
    participation: float, first: int, rates: list[float]
) -> None:
    """Not that of all clients who will ever be there; a run that was stopped after the change knows both."""
    settings: dict[str, Any] = {
        "participation": participation, "timeline": [{"round": 1, "arrive": [first, 19]}]
    }  # fmt: skip
    federation, again = on_digits(**settings), on_digits(**settings)
    run(federation, 2)
    tensors, plain = federation.state()
    again.restore(tensors, json.loads(json.dumps(plain)))
    by_hand = sorted(Counter((4.0, rate) for rate in rates).items())
    for counting in (federation, again):
        assert mechanisms(counting) == [(*of, count) for of, count in by_hand]
        (statement,) = counting.privacy()
        worth = epsilon([(4.0, rate, 1) for rate in rates], 1e-5)
        assert statement["epsilon"] == pytest.approx(worth, abs=1e-4)
        assert statement["sampling_rate"] == max(rates)
        assert (statement["sampling"] == "none") == (participation == 1)


@pytest.mark.parametrize(
    ("method", "settings", "texts"),
    [
        ("fedavg", {}, ["numbers of training samples, the weights", "that a client takes part", "validation samples"]),
        ("ditto", {}, ["personalized models, each trained on its client's data"]),
        ("scaffold", {}, ["'control_change', which clients send as they are"]),
        ("fedavg", {"model": "test_norm"}, ["running statistics of normalisation layers"]),
        ("fedavg", {"normalise": "pooled"}, ["mean and deviation of all clients' samples"]),
    ],
)
def test_what_is_not_protected_is_said(method: str, settings: dict[str, Any], texts: list[str]) -> None:
    federation = toy(method, channel=noisy("each"), **settings)
    run(federation, 2)
    (statement,) = federation.privacy()
    assert statement["epsilon"] == pytest.approx(epsilon([(0.5, 1.0, statement["releases"])], 1e-5), abs=1e-4)
    for text in texts:
        assert text in "; ".join(statement["unprotected"])
    assert ("personalized" in str(statement["unprotected"])) == (method == "ditto")


def test_what_a_client_shows_by_sending_something_is_said() -> None:
    """The choice of a cluster, a weight; what all send shows nothing, nor do their second messages."""
    sent = SentValues()
    for names, weight in ((["shared", "cluster0"], 1.0), (["shared", "cluster2"], 1.0)):
        sent.add_message(0, names, weight)
        sent.add_message(1, ["head"], weight)
    assert sent.beside_models == ["which of 'cluster0', 'cluster2' a client sends"]
    sent.add_message(0, ["shared", "cluster0"], None)
    sent.add_message(0, ["shared", "cluster0"], 0.3)
    again = SentValues()
    again.restore(sent.state())
    assert again.beside_models == sent.beside_models
    assert sent.beside_models[1:] == [
        "numbers of training samples, the weights of the mean", "weights that clients compute for their uploads"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "settings", "problem"),
    [
        (
            "fedavg",
            {"server": {"name": "median"}},
            "rule 'median' does not take a plain mean; leave out `server`",
        ),
        ("fedavg", {"server": {"name": "fedbuff", "buffer": 2}}, "server rule 'fedbuff' does not take a plain mean"),
        ("fedbuff", {}, "method 'fedbuff' has a server rule of its own; take `on: each`"),
        ("fedproto", {}, "method 'fedproto' does more with uploads than a mean; take `on: each`"),
        ("scaffold", {}, "method 'scaffold' does more with uploads than a mean"),
        ("ccvr", {}, "method 'ccvr' does more with uploads than a mean"),
        ("fedavg", {"participation": 0.5, "selection": "by_size"}, "'by_size' does not draw clients uniformly"),
    ],
)
def test_noise_on_a_sum_that_is_none_is_refused(method: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=re.escape(problem)):
        toy(method, channel=noisy("sum"), **settings)
    if method != "ccvr":
        toy(method, channel=noisy("each"), **settings)


@pytest.mark.parametrize("name", ["top_k", "random_k", "quantise", "sign", "cast"])
def test_an_operation_on_each_part_of_a_sums_noise_is_refused(name: str) -> None:
    """It chooses and rounds by an update with an m-th of the variance, and what arrives follows from no noised sum."""
    said = f"'{name}' after gaussian changes each update before the sum; .* or take `on: each`"
    with pytest.raises(UserError, match=said):
        toy("fedavg", channel=noisy("sum", after=(name,)))
    federation = toy("fedavg", channel=noisy("each", after=(name,)))
    run(federation, 2)
    assert mechanisms(federation) == [(1.0, 1.0, 2)]


def test_a_method_that_has_everyone_in_each_round_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS.get("fedavg"), "everyone", True)
    with pytest.raises(UserError, match="has all clients in every round; leave out `participation`"):
        toy("fedavg", channel=noisy("sum"), participation=0.5)
    federation = toy("fedavg", channel=noisy("sum"))
    federation.advance()
    assert mechanisms(federation) == [(1.0, 1.0, 1)]


@pytest.mark.parametrize("noise", [{"channel": noisy("each")}, {"channel": (), "dp_sgd": {"noise": 2.0}}])
def test_samples_that_pass_from_client_to_client_are_refused_where_epsilon_is_by_client(noise: dict[str, Any]) -> None:
    """A sample that is first at one client and then at another is in the releases of both; a sum has it once."""
    exchange = [{"round": 1, "exchange": 1.0}]
    with pytest.raises(UserError, match="`exchange` passes samples on to other clients"):
        on_digits(timeline=exchange, **noise)
    on_digits(timeline=[{"round": 1, "arrive": [10, 19]}], **noise)
    on_digits(timeline=exchange)


def test_bits_of_the_adaptive_norm_need_the_sum() -> None:
    with pytest.raises(UserError, match="adaptive_clip counts bits of all clients: take `on: sum`"):
        toy("fedavg", channel=noisy("each", clip=ADAPTIVE))


def test_without_the_accountant_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'pfleague\[privacy\]'"):
        toy("fedavg", channel=noisy())
    toy("fedavg", channel=tuple(check_setting("channel", ["clip"])))
