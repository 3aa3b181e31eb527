"""The simulated clock: profiles, the formulas of wait-free rounds, dropouts, and who waits for whom."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.engine.programs import Work
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.federation.setup import make_method
from bench.federation.simulated_time import Clock
from bench.federation.traffic import Size
from bench.profiles import PRESETS, Profile
from bench.settings import Settings
from tests.engine.problems import everything, generic, run, toy, toy_data

SIZES = [9, 5, 7]
BYTES = 21 * 8  # bytes of the model `test_linear`
EPOCHS, PERSONAL = 2, 3

rates = st.lists(st.floats(1.0, 1e4), min_size=len(SIZES), max_size=len(SIZES))


def ditto(clock: dict[str, Any], **more: Any) -> Federation:
    return toy("ditto", sizes=SIZES, epochs=EPOCHS, hp={"personal_epochs": PERSONAL}, clock=clock, **more)


@settings(max_examples=8, deadline=None)
@given(speed=rates, uplink=rates, downlink=rates, latency=st.floats(0, 2))
@pytest.mark.long
def test_wait_free_changes_seconds_only_and_by_the_formulas(
    speed: list[float], uplink: list[float], downlink: list[float], latency: float
) -> None:
    """A = max_j(s_j + G_j [+ P_j] + U_j), and s_i = max(A + D_i, end of the client's work), for unequal clients."""
    clock = {"samples_per_second": speed, "uplink": uplink, "downlink": downlink, "latency": latency}
    free, waiting = ditto(clock), ditto(clock, wait_free=False)
    scores = [run(federation, 3) for federation in (free, waiting)]
    assert scores[0].metrics == scores[1].metrics
    states = [everything(federation) for federation in (free, waiting)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])

    g = [EPOCHS * n / v for n, v in zip(SIZES, speed, strict=True)]
    p = [PERSONAL * n / v for n, v in zip(SIZES, speed, strict=True)]
    u = [latency + BYTES / v for v in uplink]
    d = [latency + BYTES / v for v in downlink]
    clients = range(len(SIZES))
    for federation, early in ((free, True), (waiting, False)):
        ready, end = 0.0, [0.0] * len(SIZES)
        for row in federation.ledger:
            start = [max(ready + d[i], end[i]) for i in clients]
            end = [start[i] + g[i] + p[i] for i in clients]
            ready = max(start[i] + g[i] + (0 if early else p[i]) + u[i] for i in clients)
            assert row["seconds"] == pytest.approx(ready, rel=1e-12)
            assert row["settled"] == pytest.approx(max(ready, *end), rel=1e-12)


def test_waiting_changes_the_models_of_an_asynchronous_server_and_is_said() -> None:
    """A slow personal training delays the first client's upload past the others'."""
    clock = {"samples_per_second": [1000.0, 30.0, 20.0]}
    hp = {"personal_epochs": 50}
    settings: dict[str, Any] = {"sizes": SIZES, "hp": hp, "clock": clock, "server": {"name": "fedasync"}}
    free, waiting = (toy("ditto", wait_free=wait_free, **settings) for wait_free in (True, False))
    for federation in (free, waiting):
        run(federation, 4)
    assert not torch.equal(generic(free), generic(waiting))
    said = "wait_free: off changes models here"
    assert [any(said in text for text in federation.warnings) for federation in (free, waiting)] == [False, True]
    assert not any(said in text for text in ditto({}, wait_free=False).warnings)


def test_equal_clients_have_the_closed_form() -> None:
    """A round takes T_G + max(T_P, T_comm) instead of T_G + T_P + T_comm, from the second round on."""
    sizes = [6, 6]
    clock = {"samples_per_second": 10.0, "uplink": BYTES / 2.0, "downlink": BYTES / 0.5}
    t_g, t_p, t_comm = 6 * EPOCHS / 10, 6 * PERSONAL / 10, 2.5
    for wait_free, expected in ((True, t_g + max(t_p, t_comm)), (False, t_g + t_p + t_comm)):
        federation = toy(
            "ditto", sizes=sizes, epochs=EPOCHS, hp={"personal_epochs": PERSONAL}, clock=clock, wait_free=wait_free
        )
        run(federation, 3)
        seconds = [row["seconds"] for row in federation.ledger]
        assert seconds[2] - seconds[1] == pytest.approx(expected)


@pytest.mark.parametrize("method", ["ditto", pytest.param("scd", marks=pytest.mark.long)])
def test_personal_training_until_the_next_model_fills_the_time(method: str) -> None:
    """As many whole steps as fit before the next model arrives, but at least one; the generic model does not change."""
    clock = {"samples_per_second": [10.0, 30.0, 20.0], "uplink": [20.0, 30.0, 500.0], "downlink": 100.0}
    fixed, filled = (toy(method, sizes=[9, 5, 1], clock=clock, pm_until_broadcast=until) for until in (False, True))
    for federation in (fixed, filled):
        federation.advance()
    if method == "ditto":
        assert torch.equal(generic(fixed), generic(filled))
    next_model = filled.now + BYTES / 100.0
    for client, (rate, batch) in enumerate([(10.0, 4), (30.0, 4), (20.0, 1)]):
        (span,) = [s for s in filled.spans if s.client == client and s.kind == "personal training"]
        steps = int((next_model - span.start) / (batch / rate))
        assert steps > 3
        samples = (span.end - span.start) * rate
        whole = {0: lambda k: 4 * k - 3 * (k // 3), 1: lambda k: 4 * k - 3 * (k // 2), 2: lambda k: k}[client]
        assert samples == pytest.approx(whole(steps))  # the last batch of an epoch is short
    states = [federation.clients[0].state["personal"].weights for federation in (fixed, filled)]
    assert not torch.equal(*states)


@pytest.mark.parametrize("policy", ["broadcast", "cap"])
@pytest.mark.parametrize("rounds", [{"server": {"name": "fedasync"}}, {"method": "lga"}], ids=["arrivals", "ticks"])
def test_training_of_unselected_clients_needs_synchronous_rounds(policy: str, rounds: dict[str, Any]) -> None:
    settings = {"method": "ditto", "participation": 0.5, **rounds}
    with pytest.raises(UserError, match=f"`unselected: {policy}` needs synchronous rounds, .* set `unselected: idle`"):
        make_method(Settings(unselected=policy, **settings))
    make_method(Settings(**settings))
    make_method(Settings(method="ditto", participation=0.5, unselected=policy))


@pytest.mark.parametrize("method", ["fedavg", "fedbuff", "lga"])
def test_stragglers_that_no_round_clock_delays_are_said(method: str) -> None:
    federations = [toy(method, sizes=SIZES, stragglers=late) for late in ({}, {0: 2})]
    for federation in federations:
        run(federation, 2)
    same = torch.equal(*map(generic, federations))
    warned = ["stragglers change nothing here" in " ".join(federation.warnings) for federation in federations]
    assert warned == [False, same]
    assert same == (method != "lga")


def test_the_timeline_has_every_phase_in_its_place() -> None:
    federation = ditto({"samples_per_second": 10.0, "uplink": BYTES / 2.0, "downlink": BYTES / 0.5})
    federation.advance()
    own = {span.kind: (span.start, span.end) for span in federation.spans if span.client == 1}
    assert own == {
        "download": (0, pytest.approx(0.5)),
        "training": (pytest.approx(0.5), pytest.approx(1.5)),
        "upload": (pytest.approx(1.5), pytest.approx(3.5)),
        "personal training": (pytest.approx(1.5), pytest.approx(3.0)),
    }


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize(
    ("method", "hp", "samples"),
    [
        ("fedavg", {}, 6),
        ("pfedme", {"K": 4}, 4 * 6),
        ("perfedavg", {"variant": "fo"}, 2 * 6),
        ("perfedavg", {"variant": "hf"}, 4 * 6),
        pytest.param("comet", {"public_batch": 4}, 6 + 3 * 4, marks=pytest.mark.long),
    ],
)
def test_a_gradient_costs_the_batches_it_reads(method: str, hp: dict[str, Any], samples: int, executor: str) -> None:
    """Three steps of two samples; for COMET each gradient also reads a public batch of four."""
    clock = {"samples_per_second": 1.0, "uplink": 1e12, "downlink": 1e12}
    federation = toy(method, sizes=[6, 6], epochs=1, batch_size=2, executor=executor, hp=hp, clock=clock)
    federation.advance()
    training = [span for span in federation.spans if span.client == 0 and "training" in span.kind]
    assert samples in [round(span.end - span.start, 3) for span in training]


def test_an_exchange_waits_for_the_slowest() -> None:
    """In DS-FL, the fast client continues only when the slow one has sent its logits."""
    clock = {"samples_per_second": [10.0, 1.0]}
    federation = toy("dsfl", sizes=[6, 6], public=toy_data(seed=9), clock=clock)
    federation.advance()
    trainings = {i: [s for s in federation.spans if s.client == i and s.kind == "download"] for i in (0, 1)}
    assert trainings[0][1].start == trainings[1][1].start


def test_slow_clients_slow_rounds_and_architectures() -> None:
    work, archs = Work(1, 10), dict.fromkeys(range(40), "mlp") | {7: "cnn"}
    plain = Clock(Profile(), 0, archs, {})
    assert plain.work(3, work, 0) == 10 / 1000
    slow = Clock(Profile(slow_clients={"clients": [3], "factor": 5.0}, models={"cnn": 0.1}), 0, archs, {})
    assert [slow.work(i, work, 0) for i in (2, 3, 7)] == pytest.approx([0.01, 0.05, 0.1])
    share = Clock(Profile(slow_clients={"share": 0.25, "factor": 2.0}), 0, archs, {})
    assert sum(share.work(i, work, 0) > 0.015 for i in archs) == 10
    rounds = Clock(Profile(slow_rounds={"probability": 0.5, "factor": 3.0}), 0, archs, {})
    times = [[rounds.work(i, work, r) for i in archs] for r in range(20)]
    assert {round(t, 6) for one in times for t in one} == {0.01, 0.03}
    assert len({tuple(one) for one in times}) > 15
    spread = Clock(Profile(uplink={"median": 100.0, "sigma": 1.0}), 0, archs, {})
    drawn = sorted(spread.up(i, Size(100)) for i in archs)
    assert drawn[0] < 0.6 < 1.7 < drawn[-1]


def test_clients_that_drop_out_are_not_in_the_round() -> None:
    federation = toy("fedavg", sizes=[4, 4, 4, 4], clock={"dropout": 0.5})
    counts = set()
    for _ in range(12):
        before = generic(federation).clone()
        federation.advance()
        counts.add(federation.ledger[-1]["up"] // BYTES)
        if federation.ledger[-1]["up"] == 0:
            assert torch.equal(before, generic(federation))
    assert counts >= {1, 2, 3}


def test_dropping_out_under_an_asynchronous_server_goes_on() -> None:
    run(toy("fedavg", sizes=[4, 4], server={"name": "fedasync"}, clock={"dropout": 0.9}), 5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"method": "spfl", "clock": {"dropout": 0.1}}, "needs all clients in every round; leave out the clock's `dro"),
        ({"pm_until_broadcast": True, "wait_free": False}, "needs a synchronous server"),
        ({"pm_until_broadcast": True, "server": {"name": "fedasync"}}, "needs a synchronous server"),
    ],
)
def test_what_does_not_go_with_a_method_is_refused_before_any_data_are_read(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_method(Settings(**{"method": "ditto", **wrong}))


def test_presets_can_be_named_and_changed() -> None:
    assert Settings(method="fedavg").clock == Settings(method="fedavg", clock="uniform").clock == Profile()
    mobile = Settings(method="fedavg", clock={"preset": "mobile", "latency": 1.0}).clock
    assert mobile == Profile(**{**PRESETS["mobile"], "latency": 1.0})


@pytest.mark.parametrize("wrong", [{"uplink": 0}, {"uplink": []}, {"dropout": 1.0}, {"speed": 1}, {"latency": -1}])
def test_impossible_profiles_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(method="fedavg", clock=wrong)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_asynchronous_ids_are_fedavg_under_that_rule(method: str) -> None:
    ours = toy(method, sizes=SIZES)
    theirs = toy("fedavg", sizes=SIZES, server={"name": method})
    for federation in (ours, theirs):
        run(federation, 5)
    assert torch.equal(generic(ours), generic(theirs))
    with pytest.raises(UserError, match="has a server rule of its own"):
        toy(method, server={"name": "fedbuff"})


def test_a_buffer_larger_than_the_clients_is_said_and_closes_with_all() -> None:
    federation = toy("fedbuff", sizes=SIZES)
    run(federation, 2)
    assert any("3 make a version" in text for text in federation.warnings)
