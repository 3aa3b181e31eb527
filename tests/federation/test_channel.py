"""The channel in a federation: what passes it, what is counted, what clients keep, and what is refused."""

import contextlib
import json
from typing import Any

import pytest
import torch

from bench.channel.operation import Update
from bench.errors import UserError
from bench.federation.channel import STATE, origin
from bench.plugin import CHANNELS
from bench.rng import generator
from tests.engine.problems import EVERY_METHOD, generic, numbered_model, remarks, run, toy
from tests.federation.helpers import SIZES, attack, channel

TOP_K = {"name": "top_k", "share": 0.25}


def test_the_server_adds_what_arrives_to_what_the_client_had() -> None:
    """Two rounds of a single client, against the operation itself: the second update has the first one's rest in it."""
    federation = toy("fedavg", sizes=[9], channel=(TOP_K,), momentum=0.0)
    kind = CHANNELS.get("top_k")
    operation, state, w = kind(kind.Hyper(share=0.25)), {}, federation.server.initial_model().weights
    for version in range(2):
        plain = toy("fedavg", sizes=[9], momentum=0.0)
        plain.restore(*federation.state())
        plain.advance()
        update, state = operation.send(Update.of(generic(plain) - w), state, generator("not used"))
        w = w + update.decoded()
        federation.advance()
        torch.testing.assert_close(generic(federation), w, rtol=0, atol=1e-12)
        kept = federation.clients[0].state[STATE]["top_k model"]["memory"]
        torch.testing.assert_close(kept, state["memory"], rtol=0, atol=1e-12)
        assert federation.ledger[version]["up"] == update.bytes


def test_running_statistics_travel_as_they_are_and_are_counted() -> None:
    common: dict[str, Any] = {"sizes": [9], "model": "test_norm"}
    encoded, plain = toy("fedavg", channel=(TOP_K,), **common), toy("fedavg", **common)
    encoded.advance()
    plain.advance()
    models = [federation.server.state["model"] for federation in (encoded, plain)]
    assert torch.equal(models[0].buffers, models[1].buffers)
    assert not torch.equal(models[0].weights, models[1].weights)
    assert encoded.ledger[0]["up_buffers"] == plain.ledger[0]["up_buffers"] > 0
    assert encoded.ledger[0]["up"] < plain.ledger[0]["up"] / 2


def test_shorter_messages_arrive_sooner() -> None:
    """By hand: half precision is a quarter of float64's bytes, at 1000 bytes a second; all else is the same."""
    common: dict[str, Any] = {"sizes": [9], "clock": {"uplink": 1000.0}}
    encoded, plain = toy("fedavg", channel=channel("cast"), **common), toy("fedavg", **common)
    encoded.advance()
    plain.advance()
    sent = plain.ledger[0]["up"]
    assert encoded.ledger[0]["up"] == sent / 4
    assert plain.now - encoded.now == pytest.approx(sent * 3 / 4 / 1000)


def test_an_exchange_goes_through_the_channel_and_its_other_tensors_do_not() -> None:
    federation, plain = toy("ccvr", channel=channel("top_k")), toy("ccvr")
    federation.advance()
    plain.advance()
    assert {tuple(state[STATE]) for state in federation.clients.states().values() if STATE in state} == {
        ("top_k model",)
    }
    d, clients = federation.server.initial_model().weights.nbytes, len(federation.clients.ids)
    assert plain.ledger[0]["up"] - federation.ledger[0]["up"] == clients * (d - 8 - 1), "one number and 5 bits arrive"


def test_clients_and_rounds_have_draws_of_their_own() -> None:
    """Positions of a random half differ from client to client and from round to round."""
    federation = toy("fedavg", channel=({"name": "random_k", "share": 0.5},))
    memories = []
    for _ in range(2):
        federation.advance()
        states = federation.clients.states().values()
        memories += [tuple((s[STATE]["random_k model"]["memory"] == 0).tolist()) for s in states]
    assert len(set(memories)) == len(memories)


BOTH: list[dict[str, Any]] = [{"channel": channel("top_k", "sign")}, {"attack": attack("sign_flip"), "sizes": SIZES}]
"""Channel and attack act on model values alone, and what they leave is said by the same record."""


@pytest.mark.parametrize("settings", BOTH, ids=["channel", "attack"])
@pytest.mark.parametrize(
    ("method", "sends"), [("local", "nothing"), ("fedproto", "no model value, only 'means', 'count'")]
)
def test_a_method_that_sends_no_model_is_refused(method: str, sends: str, settings: dict[str, Any]) -> None:
    rest = "so top_k, sign would change nothing" if "channel" in settings else "which it would leave as it"
    with pytest.raises(UserError, match=f"(channel|attack 'sign_flip'): method '{method}' sends {sends}, {rest}"):
        toy(method, **settings).advance()


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_sends_less_or_is_refused(method: str) -> None:
    encoded, plain = toy(method, channel=channel("clip", "top_k", "quantise")), toy(method)
    with contextlib.suppress(UserError):
        encoded.advance()
    if not encoded.ledger:
        with pytest.raises(UserError, match="so clip would change nothing"):
            toy(method, channel=channel("clip")).advance()
        return
    plain.advance()
    assert 0 < encoded.ledger[0]["up"] < plain.ledger[0]["up"]


@pytest.mark.parametrize(
    ("settings", "says"),
    list(zip(BOTH, ["channel: {}, so the operations see", "attack: {}, so the attack is on"], strict=True)),
)
def test_an_upload_without_a_download_of_its_name_is_said(settings: dict[str, Any], says: str) -> None:
    federation = toy("fedadmm", **settings)
    run(federation, 2)
    said = says.format("method 'fedadmm' downloads no 'moved'")
    assert federation.warnings == [f"{said} its numbers and not {'on ' * ('attack' in says)}their change"]


@pytest.mark.parametrize(
    ("method", "settings", "share", "name"),
    [
        ("scaffold", BOTH[0], 50, "control_change"),
        ("scaffold", BOTH[1], 50, "control_change"),
        ("floco", {**BOTH[0], "hp": {"endpoints": 3}}, 46, "others"),
        ("fedavg", BOTH[0], 0, ""),
    ],
)
def test_what_is_left_alone_is_said_once(method: str, settings: dict[str, Any], share: int, name: str) -> None:
    """A control variate is as large as the model; beside a model of 12 + 9 numbers are two more heads of 9."""
    federation, stopped = toy(method, **settings), toy(method, **settings)
    run(federation, 2)
    tensors, plain = federation.state()
    stopped.restore(tensors, json.loads(json.dumps(plain)))
    run(stopped, 1)
    by, then = ("attack 'sign_flip'", "malicious clients send them honestly")
    by, then = ("channel", "travel as they are") if "channel" in settings else (by, then)
    for going_on in (federation, stopped):
        assert remarks(going_on) == (share > 0) * [
            f"{by}: method '{method}': {share}% of the numbers that clients send are no model values ('{name}'), "
            f"and {then}"
        ]


def test_a_part_has_its_part_of_the_download_as_its_base() -> None:
    whole = numbered_model()
    head = whole.part("head")
    torch.testing.assert_close(origin(whole, head), head.weights)
    torch.testing.assert_close(origin(head, head), head.weights)
    assert [origin(base, whole) for base in (head, whole.weights, None)] == [None] * 3
