"""LGA, PLGA and the baselines of their paper against their formulas, with clients that are late."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from bench.settings import Settings
from methods.lga import similarity
from tests.engine.problems import generic, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, near

SIZES = [9, 5, 4]
DELAYS = {0: 2, 2: 1}
CLOCKS = {"paper": DELAYS, "released": {0: (2, 0), 2: (1, 0)}}
"""In the released code an ordinary round comes after a late one."""
N, D = len(SIZES), 21
TENSORS = (slice(0, 12), slice(12, 21))
FAMILY = ("lga", "plga", "fedavg_async", "fedavg_sync", "fedasync_mix", "perfedavg_async")


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


@pytest.mark.parametrize("clock", ["paper", pytest.param("released", marks=pytest.mark.long)])
@pytest.mark.parametrize(("method", "equation"), [("lga", 10), ("plga", 10), *((name, 11) for name in FAMILY)])
def test_follows_the_formulas(method: str, equation: int, clock: str) -> None:
    """One client in time, one late by a round, one by two; seven rounds, so that everyone is late twice."""
    federation = toy(method, sizes=SIZES, hp={"equation": equation}, stragglers=CLOCKS[clock], **PLAIN)
    w, models = reference(initial(federation), method, equation, 7, clock)
    for t in range(7):
        federation.advance()
        near(generic(federation), w[t + 1])
    for i, found in personal(federation).items():
        near(found, models[i])


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


def test_similarity_lies_between_its_bounds() -> None:
    """1/2 for the same step, e^-1 / (e + e^-1) for the opposite one, 1 / (e + 1) without a step or with a noisy one."""
    base = toy("lga").server.initial_model()
    first = base.with_weights(base.weights + 0.1 * torch.from_numpy(np.random.default_rng(0).normal(size=D)))
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
