"""Sites and servers that stop, and messages that cannot be taken: as if that site had dropped out, and nothing lost."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import UserError
from bench.federation.simulated_time import Clock
from bench.method import (
    METHODS,
    Client,
    Exchange,
    Message,
    Method,
    Program,
    Server,
    State,
    Train,
    Upload,
    cross_entropy,
)
from bench.profiles import Profile
from bench.sites.messages import decode
from bench.sites.rehearsal import LocalHub, differences, simulate
from bench.sites.server import Absent
from bench.sites.site import SiteClient
from tests.sites.conftest import Small
from tests.sites.helpers import Fault, Faulty, edited, rewritten, upload

DROPOUT = Profile(dropout=0.4)
ROUNDS = 4


def dropped(seed: int) -> set[tuple[int, int]]:
    """Rounds, from 0, and clients that the simulation leaves out."""
    clock = Clock(DROPOUT, seed, dict.fromkeys(range(3), "mlp"), {})
    return {(version, i) for version in range(ROUNDS) for i in range(3) if clock.drops_out(i, version)}


def other_name(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
    upload(envelope)["sent"]["$dict"][0][0] = "modell"


def of_another_package(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
    envelope["identity"]["package"] = "0.0.1"


def huge(tensors: dict[str, torch.Tensor], envelope: dict[str, Any]) -> None:
    tensors["model.weights"] = torch.full_like(tensors["model.weights"], 3e38)


FORGED = "busy\nround 2: site 1 is left out: it lies\r\x1b[2K"
FAULTS: dict[str, tuple[Fault, str]] = {
    "gone": (lambda body: Absent("gone"), "gone"),
    "truncated": (lambda body: body[:-9], "truncated"),
    "wrong name": (lambda body: rewritten(body, other_name), "it sent 'modell', and the method sends model"),
    "a tensor more": (edited({"samples": torch.zeros(5)}), "tensors beside the values: samples"),
    "another package": (lambda body: rewritten(body, of_another_package), "package .* here, 0.0.1 there"),
    "another round": (edited(version=77), "of round 78"),
    "a weight": (edited(sent={"weight": 1e12}), r"its upload has the weight 1e\+12, and .* have none"),
    "huge numbers": (lambda body: rewritten(body, huge), r"\['model'\].weights holds 3e\+38, where "),
    "a forged line": (
        edited(kind="refused", reason=FORGED, events=[]),
        r"busy\\x0around 2: site 1 is left out: it lies\\x0d",
    ),
}
QUICK = ("gone", "huge numbers")


@pytest.mark.parametrize("fault", [f if f in QUICK else pytest.param(f, marks=pytest.mark.long) for f in FAULTS])
def test_a_message_that_cannot_be_taken_is_a_dropout(small: Callable[..., Small], fault: str) -> None:
    """Also for the state of the site, which had already trained: Ditto's personal model counts its rounds."""
    job = small("ditto", rounds=ROUNDS, seed=3)  # of which no round lacks two of the three
    damaged, reason = FAULTS[fault]
    when = dropped(job.settings.seed)
    assert 2 <= len(when) < 3 * ROUNDS
    server = job.server(Faulty(job.sites(), damaged, when))
    server.run()
    simulation = simulate(job.settings.model_copy(update={"clock": DROPOUT}), Path("data"), "debug")
    assert differences(simulation, job.work) == []
    told = server.rounds.left_out
    assert len(told) == len(when)
    for line, (version, i) in zip(told, sorted(when), strict=True):
        assert line.startswith(f"round {version + 1}: site {i} is left out: ")
        assert re.search(reason, line), line
        assert line.isprintable()
        assert len(line) < 1000


class TwoReplies(Method):
    """FedAvg that doubles each model on its way, by two replies that are not the same."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        first = yield Exchange({"step": 1.0})
        second = yield Exchange({"step": 2.0})
        factor = 1.0 + second["step"] - first["step"]
        yield Upload({"model": trained["w"].with_weights(factor * trained["w"].weights)})

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        return {message.client: {"step": message["step"]} for message in messages}


@pytest.mark.long
def test_an_answer_that_got_lost_is_given_again(small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message comes twice; the first reply is not taken for the second."""
    monkeypatch.setitem(METHODS._items, "two_replies", TwoReplies)
    job = small("two_replies")

    class Lossy(LocalHub):
        def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
            return (super().ask(requests), super().ask(requests))[1]

    server = job.server(Lossy(job.sites()))
    server.run()
    assert server.rounds.left_out == []
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


@pytest.mark.long
def test_a_method_that_needs_all_sites_stops_and_says_who_is_missing(small: Callable[..., Small]) -> None:
    job = small("cfl")
    server = job.server(Faulty(job.sites(), lambda body: Absent("gone"), {(1, 2)}))
    with pytest.raises(UserError, match="cfl needs all sites in every round; round 2: site 2 is left out: gone"):
        server.run()
    job.server(LocalHub(job.sites())).run()  # goes on from its checkpoint
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


@pytest.mark.long
@pytest.mark.parametrize("left", [0, 1])
def test_an_outage_stops_the_server_and_the_same_command_goes_on(small: Callable[..., Small], left: int) -> None:
    """With no site, or one of three, no round counts: the outage costs no rounds, and the end has the same bytes."""
    job = small("fedavg")
    gone = {(version, i) for version in range(1, job.settings.rounds) for i in range(left, 3)}
    server = job.server(Faulty(job.sites(), lambda body: Absent("gone"), gone))
    with pytest.raises(UserError, match=r"round 2: fewer than half of 3 sites are left, without .*site 2 \(gone\)"):
        server.run()
    assert not (job.work / "server" / "ledger.json").exists()
    again = job.server(LocalHub(job.sites()))
    assert again.federation.version == 1
    again.run()
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


def test_a_single_site_of_a_round_may_be_away(small: Callable[..., Small]) -> None:
    """Its seeded selection would be the same after every start, so that the job could not go on without it."""
    job = small("fedavg", participation=0.34)
    server = job.server(Faulty(job.sites(), lambda body: Absent("gone"), {(1, i) for i in range(3)}))
    server.run()
    assert server.federation.version == job.settings.rounds
    assert [text.partition(":")[0] for text in server.rounds.left_out] == ["round 2"]


@pytest.mark.parametrize("method", ["ditto", *(pytest.param(m, marks=pytest.mark.long) for m in ("scaffold", "ccvr"))])
def test_server_and_sites_that_start_again_lose_nothing(small: Callable[..., Small], method: str) -> None:
    """All processes end after each round, or within one after the sites had answered, and begin again from disks."""
    job = small(method, rounds=3)

    class Stopped(BaseException):
        pass

    class Stopping(LocalHub):
        def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
            super().ask(requests)
            raise Stopped  # the server's process ends before it has read the answers

    job.server(LocalHub(job.sites())).advance()
    with pytest.raises(Stopped):
        job.server(Stopping(job.sites())).advance()
    job.server(LocalHub(job.sites())).advance()
    job.server(LocalHub(job.sites())).run()
    assert differences(simulate(job.settings, Path("data"), "debug"), job.work) == []


@pytest.mark.long
def test_a_site_that_ends_while_it_waits_for_a_reply_is_left_out_of_that_round(small: Callable[..., Small]) -> None:
    job = small("ccvr", rounds=2)

    class Reborn(LocalHub):
        def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
            if not hasattr(self, "times") and decode(requests[1]).envelope.kind == "reply":
                self.times = 1
                self._sites = {**self._sites, 1: job.site(1)}
            return super().ask(requests)

    server = job.server(Reborn(job.sites()))
    server.run()
    assert server.rounds.left_out == ["round 1: site 1 is left out: site 1 has not begun round 1"]


@pytest.mark.long
def test_a_site_whose_state_is_lost_says_so(small: Callable[..., Small]) -> None:
    job = small("ditto", rounds=2)
    job.server(LocalHub(job.sites())).advance()
    for path in (job.work / "site-1").glob("state-*"):
        path.unlink()
    server = job.server(LocalHub(job.sites()))
    server.advance()
    assert server.rounds.left_out == [
        "round 2: site 1 is left out: site 1 has states of rounds none, and its server counts on state-000001: give "
        "the one that lost its folder's files them back, or begin the job anew with empty folders"
    ]


def test_a_site_of_another_version_keeps_the_job_from_starting(small: Callable[..., Small]) -> None:
    job = small("fedavg")

    class Newer(SiteClient):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._identity = self._identity.model_copy(update={"settings": "0123456789abcdef"})

    sites = job.sites() | {2: Newer(job.job, 2, job.samples[2], job.work / "site-2", "debug")}
    here = job.job.identity().settings
    with pytest.raises(UserError, match=f"cannot start: site 2: .*settings {here} here, 0123456789abcdef there"):
        job.server(LocalHub(sites))


def test_a_checkpoint_of_another_job_is_refused(small: Callable[..., Small]) -> None:
    job = small("fedavg")
    job.server(LocalHub(job.sites())).advance()
    job.job = job.job.model_copy(update={"settings": job.settings.model_copy(update={"lr": 0.2})})
    with pytest.raises(UserError, match="holds the checkpoint of another job"):
        job.server(LocalHub({}))
