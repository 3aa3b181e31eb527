"""LGA and PLGA against their formulas, and where they are another method."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from bench.method import Params
from bench.settings import Settings
from methods.lga import FedAsyncMixHyper, Hyper, PerFedAvgAsyncHyper, between, leap, similarity
from tests.engine.problems import BOTH_MODELS, generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, near

SIZES = [9, 5, 4]
DELAYS = {0: 2, 2: 1}
CLOCKS = {"paper": DELAYS, "released": {0: (2, 0), 2: (1, 0)}}
"""In the released code an ordinary round comes after a late one."""
N, D = len(SIZES), 21
TENSORS = (slice(0, 12), slice(12, 21))
FAMILY = ("lga", "plga", "fedavg_async", "fedavg_sync", "fedasync_mix", "perfedavg_async")
LIKE_FEDAVG_ASYNC = {"fedasync_mix": {"alpha": 1.0, "poly_a": 0.0}, "perfedavg_async": {"beta": 0.0}}
"""Settings in which nothing is left of a method."""


def local_model(method: str, w: Array, t: int, client: int) -> Array:
    """What a client that starts from `w` in round t trains; Per-FedAvg takes a second step of rate 0.001 per batch."""
    for x, target in local_batches(SIZES, t, client):
        w = w - LR * gradient(w, x, target)
        if method == "perfedavg_async":
            w = w - 0.001 * gradient(w, x, target)
    return w


def share(first: Array, base: Array, local: Array) -> Array:
    """Equations 8, 9 and 13."""
    found = np.empty(D)
    for tensor in TENSORS:
        a, b = (first - base)[tensor], (local - base)[tensor]
        s = np.exp(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        found[tensor] = s / (np.e + s)
    return found


def period(clock: str, client: int) -> list[int]:
    """The delays of a client's rounds, before they repeat."""
    delay = DELAYS.get(client, 0)
    return [delay, 0] if clock == "released" and delay else [delay]


def reference(
    start: Array, method: str, equation: int, rounds: int, clock: str
) -> tuple[list[Array], dict[int, Array]]:
    """Algorithm 2 in numpy: the generic models by round, and the personalized models after the last one."""
    w, models = [start], dict.fromkeys(range(N), start)
    away: dict[int, tuple[int, int, Array]] = {}  # by client: the rounds it started in and is due, what it trained
    delays = {i: itertools.cycle(period(clock, i)) for i in range(N)}
    for t in range(rounds):
        for i in set(range(N)) - away.keys():
            away[i] = t, t + next(delays[i]), local_model(method, w[t], t, i)
        arrived, raw = {}, {}
        for i in [i for i, (_, due, _) in away.items() if due == t]:
            started, _, local = away.pop(i)
            raw[i], arrived[i] = (started, local), local
            if started < t and method in ("lga", "plga"):
                d = local - w[started]
                curve = share(w[started + 1], w[started], local) * d * d * (w[t] - w[started + 1])
                arrived[i] = (w[t] if equation == 11 else w[started]) + curve + d
            if started < t and method == "fedasync_mix":
                own = 0.8 / np.sqrt(t - started + 1)
                arrived[i] = own * local + (1 - own) * w[t]
        counted = [i for i in arrived if raw[i][0] == t or method != "fedavg_sync"]
        w.append(np.average([arrived[i] for i in counted], axis=0, weights=[SIZES[i] for i in counted]))
        for i, (started, local) in raw.items():
            now = w[t] if started < t else w[t + 1]
            s = share(w[started + 1], w[started], local) if method == "plga" else 0.0
            models[i] = w[started] + (1 - s) * (arrived[i] - w[started]) + s * (now - w[started])
    return w, models


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("equation", [10, 11])
@pytest.mark.parametrize("method", FAMILY)
def test_follows_the_formulas(method: str, equation: int, clock: str) -> None:
    """One client in time, one late by a round, one by two; seven rounds, so that everyone is late twice."""
    federation = toy(method, sizes=SIZES, hp={"equation": equation}, stragglers=CLOCKS[clock], **PLAIN)
    w, models = reference(initial(federation), method, equation, 7, clock)
    for t in range(7):
        federation.advance()
        near(generic(federation), w[t + 1])
    for i, found in personal(federation).items():
        near(found, models[i])


@pytest.mark.parametrize("model", BOTH_MODELS)
@pytest.mark.parametrize("method", FAMILY)
def test_without_stragglers_it_is_fedavg(method: str, model: str) -> None:
    """The generic model bit for bit; the personalized models of PLGA are not FedAvg's local ones, those of LGA are."""
    hyper = {"beta": 0.0} if method == "perfedavg_async" else {}
    federation = toy(method, model=model, participation=0.6, hp=hyper)
    fedavg = toy("fedavg", model=model, participation=0.6)
    run(federation, 3)
    run(fedavg, 3)
    assert torch.equal(generic(federation), generic(fedavg))
    trained = {i: personal(federation)[i] for i in fedavg.local_models}
    assert all(torch.equal(w, fedavg.local_models[i].weights) for i, w in trained.items()) == (method != "plga")


@pytest.mark.parametrize("model", BOTH_MODELS)
def test_plga_has_the_server_of_lga(model: str) -> None:
    """Bit for bit, whatever the stragglers."""
    a, b = (toy(method, model=model, stragglers={0: 1, 1: 3}) for method in ("lga", "plga"))
    run(a, 5)
    run(b, 5)
    assert torch.equal(generic(a), generic(b))
    assert not torch.equal(personal(a)[0], personal(b)[0])


def models(federation: Federation) -> list[Params]:
    """The generic model and the clients'."""
    state = federation.server.state
    return [state["model"], *(w for _, w in sorted(state["personal"].items()))]


@pytest.mark.parametrize("model", BOTH_MODELS)
@pytest.mark.parametrize("method", [pytest.param("fedasync_mix", marks=pytest.mark.long), "perfedavg_async"])
def test_what_is_left_is_fedavg_with_stragglers(method: str, model: str) -> None:
    """A mixture of the late model alone, a second step of rate 0: bit for bit, running statistics included."""
    settings: dict[str, Any] = {"model": model, "stragglers": {0: 1, 1: 3}}
    mine, fedavg = toy(method, hp=LIKE_FEDAVG_ASYNC[method], **settings), toy("fedavg_async", **settings)
    run(mine, 5)
    run(fedavg, 5)
    assert len(models(mine)) == 6
    for found, expected in zip(models(mine), models(fedavg), strict=True):
        assert torch.equal(found.weights, expected.weights)
        assert torch.equal(found.buffers, expected.buffers)
    usual = toy(method, **settings)
    run(usual, 5)
    assert not torch.equal(generic(usual), generic(fedavg))


def test_nothing_of_a_late_model_is_the_current_generic_one() -> None:
    """A share of 0: what a straggler sends in round 2 is the model that the others made in round 1, and it keeps that.

    Its running statistics remain its own: those of the model that it would have sent.
    """
    settings: dict[str, Any] = {"model": "test_norm", "stragglers": {0: 2}}
    federation, fedavg = toy("fedasync_mix", hp={"alpha": 0.0}, **settings), toy("fedavg_async", **settings)
    run(federation, 2)
    current = generic(federation)
    run(federation, 1)
    run(fedavg, 3)
    late, as_is = (one.evaluator.personal(3)[0] for one in (federation, fedavg))
    assert torch.equal(late.weights, current)
    assert torch.equal(late.buffers, as_is.buffers)
    assert not torch.equal(late.weights, as_is.weights)


def test_per_fedavg_without_stragglers_is_that_of_table_1() -> None:
    """With one rate for both steps it is SPFL-w with uniform similarity, the synchronous Per-FedAvg of the paper."""
    settings: dict[str, Any] = {"sizes": [6, 6, 6], "momentum": 0.0, "lr": LR}
    mine = toy("perfedavg_async", hp={"beta": LR}, **settings)
    table1 = toy("spfl_w", hp={"similarity": ("uniform", "uniform"), "gamma": None}, **settings)
    run(mine, 3)
    run(table1, 3)
    near(generic(mine), generic(table1).numpy())


def test_settings_that_undo_a_method_are_announced() -> None:
    """And others, the alpha of a method that mixes nothing among them, are not."""
    assert "current generic model" in FedAsyncMixHyper(alpha=0.0).degenerate()[0]
    assert "FedAvg" in PerFedAvgAsyncHyper(beta=0.0).degenerate()[0]
    assert FedAsyncMixHyper().degenerate() == PerFedAvgAsyncHyper().degenerate() == Hyper(alpha=0.0).degenerate() == []


def points(model: Federation, *seeds: int) -> list[Params]:
    """Model values around the initial one."""
    w = model.server.initial_model()
    return [
        w.with_weights(w.weights + 0.1 * torch.randn(w.spec.d, generator=gen(s), dtype=torch.float64)) for s in seeds
    ]


def gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def four() -> SimpleNamespace:
    """w_t0, w_t1, w_tau and w_k^t0."""
    base, first, now, local = points(toy("lga"), 1, 2, 3, 4)
    return SimpleNamespace(base=base, first=first, now=now, local=local)


def test_one_round_late_is_added_to_the_current_model(four: SimpleNamespace) -> None:
    """d = 1: w_tau = w_t1, so equation 11 is w_t1 + D and equation 10 the upload; the similarity plays no role."""
    d = four.local.weights - four.base.weights
    for s in (torch.zeros(D), torch.ones(D)):
        assert torch.equal(leap(four.base, four.first, four.first, four.local, s, 11).weights, four.first.weights + d)
        found = leap(four.base, four.first, four.first, four.local, s, 10).weights
        torch.testing.assert_close(found, four.local.weights, rtol=1e-13, atol=1e-15)


def test_nothing_learned_is_the_model_it_starts_from(four: SimpleNamespace) -> None:
    """D = 0: w_tau with equation 11, w_t0 with equation 10."""
    s = similarity(four.base, four.first, four.base)
    assert torch.equal(leap(four.base, four.first, four.now, four.base, s, 11).weights, four.now.weights)
    assert torch.equal(leap(four.base, four.first, four.now, four.base, s, 10).weights, four.base.weights)


def test_the_similarity_scales_the_second_order_term_alone(four: SimpleNamespace) -> None:
    zero, half, one = (
        leap(four.base, four.first, four.now, four.local, torch.full((D,), s, dtype=torch.float64), 11).weights
        for s in (0.0, 0.5, 1.0)
    )
    d = four.local.weights - four.base.weights
    torch.testing.assert_close(one - zero, d * d * (four.now.weights - four.first.weights))
    torch.testing.assert_close(half - zero, (one - zero) / 2)


def test_personalized_model_lies_between_the_own_and_the_generic_one(four: SimpleNamespace) -> None:
    for s, end in ((0.0, four.local), (1.0, four.now)):
        assert torch.equal(between(four.local, four.now, torch.full((D,), s, dtype=torch.float64)).weights, end.weights)


def test_similarity_lies_between_its_bounds(four: SimpleNamespace) -> None:
    """1/2 for the same step, e^-1 / (e + e^-1) for the opposite one, 1 / (e + 1) without a step or with a noisy one."""
    base, first = four.base, four.first
    back = base.with_weights(2 * base.weights - first.weights)
    noisy = base.with_weights(base.weights * (1 + torch.finfo(torch.float64).eps))
    e = np.e
    for local, expected in ((first, 0.5), (back, 1 / e / (e + 1 / e)), (base, 1 / (e + 1)), (noisy, 1 / (e + 1))):
        near(similarity(base, first, local), np.full(D, expected))


def test_nobody_in_time_leaves_the_model_as_it_is() -> None:
    late = dict.fromkeys(range(6), 2)
    federation = toy("fedavg_sync", stragglers=late)
    run(federation, 4)
    assert torch.equal(generic(federation), federation.server.initial_model().weights)
    assert not torch.equal(personal(federation)[0], generic(federation))


def test_models_kept_for_stragglers_are_freed() -> None:
    """Client 0 starts in rounds 0, 2, 4, ... and is on its way after those rounds only."""
    federation = toy("lga", stragglers={0: 1})
    for expected in ([0], [], [0], []):
        federation.advance()
        assert list(federation.server.state["after_start"]) == expected


def test_a_client_that_left_while_late_begins_anew_when_it_comes_back() -> None:
    """Client 3 is late by three rounds, leaves after round 1 and comes back before round 3, which it begins with the
    others: its leap is from the model after that round, and not from the one after the round that it lost."""
    away = ({"round": 1, "leave": [3, 3]}, {"round": 2, "arrive": [3, 3]})
    settings: dict[str, Any] = {"clients": 4, "alpha": 1.0, "batch_size": 100, "model": "logistic", "rounds": 3}
    federation = Federation.of(Settings(method="lga", stragglers={3: 3}, timeline=away, **settings))
    for expected in ([3], [], [3]):
        federation.advance()
        assert list(federation.server.state["after_start"]) == expected
    assert torch.equal(federation.server.state["after_start"][3].weights, generic(federation))


def test_delays_in_turn_set_the_rhythm() -> None:
    """A straggler of delay d starts every d + 1 rounds (paper), or every d + 2 with a round in between (released)."""
    starts: dict[str, list[int]] = {}
    for name, delays in {"paper": 2, "released": (2, 0)}.items():
        federation = toy("lga", sizes=SIZES, stragglers={1: delays})
        for t in range(10):
            federation.advance()
            if 1 in federation.server.selected:
                starts.setdefault(name, []).append(t)
    assert starts == {"paper": [0, 3, 6, 9], "released": [0, 3, 4, 7, 8]}


def test_traffic() -> None:
    """P per upload, one generic model to all who start; nobody sends more, as the server leaps and mixes."""
    for method in FAMILY:
        federation = toy(method, sizes=SIZES, stragglers=DELAYS)
        run(federation, 2)
        first, second = federation.ledger
        assert first["up"] == first["down_receivers"] == 8 * D * 3
        assert second["up"] == second["down_receivers"] == 8 * D * 1  # two clients are on their way
        assert first["down_distinct"] == second["down_distinct"] == 8 * D
