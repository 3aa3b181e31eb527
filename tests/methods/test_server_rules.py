"""FedAsync and FedBuff against their formulas, with the arrivals worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.errors import UserError
from bench.method import Message, Params
from methods.server_rules import AsyncHyper, BufferHyper, FedAsync, FedBuff
from tests.engine.problems import generic, run, toy
from tests.methods.reference import PLAIN, Array, descend, initial, local_batches, near

ALPHA = 0.6


def rule(name: str, **settings: Any) -> dict[str, Any]:
    """The setting `server` of a cell."""
    return {"name": name, **settings}


def local_model(sizes: list[int], downloaded: Array, version: int, client: int) -> Array:
    """What a client uploads: one epoch from what it downloaded, with the draws of that version."""
    return descend(downloaded, local_batches(sizes, version, client))


def test_fedasync_follows_the_formulas() -> None:
    """A client with half the data is about twice as fast.

    Both start from version 0. Rounds take 8 and 4 units and a little for the network, so the uploads arrive in the
    order 1 (at 4), 0 (at 8), 1 (a little after 8), 1 (at 12), 0 (at 16), 1 (a little after 16), each one a version.
    """
    sizes = [8, 4]
    federation = toy("fedavg", sizes=sizes, server=rule("fedasync", alpha=ALPHA, concurrency=2), **PLAIN)
    run(federation, 6)
    w = [initial(federation)]
    for version, (client, base) in enumerate([(1, 0), (0, 0), (1, 1), (1, 3), (0, 2), (1, 4)]):
        share = ALPHA * (1 + version - base) ** -0.5
        w.append((1 - share) * w[-1] + share * local_model(sizes, w[base], base, client))
    near(generic(federation), w[-1])


@pytest.mark.parametrize("weights", ["equal", "train_size"])
def test_fedbuff_follows_the_formulas(weights: str) -> None:
    """Three clients at work, two uploads per version; rounds take 4, 5 and 12 units and a little for the network.

    Clients 0 and 1 make version 1 at 5 and version 2 at 10. Client 2 arrives at 12 with version 0 in its hands and
    makes version 3 with client 0 (started at 10, arrives at 14). Client 1 (started at 10) arrives at 15, and client 0
    (started at 14) at 18: version 4.
    """
    sizes = [4, 5, 12]
    server = rule("fedbuff", buffer=2, eta_g=0.7, concurrency=3, weights=weights)
    federation = toy("fedavg", sizes=sizes, server=server, **PLAIN)
    run(federation, 4)
    w = [initial(federation)]
    for version, buffer in enumerate([[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (2, 0)], [(0, 3), (1, 2)]]):
        updates = [
            (1 + version - base) ** -0.5 * (local_model(sizes, w[base], base, client) - w[base])
            for client, base in buffer
        ]
        shares = [sizes[client] for client, _ in buffer] if weights == "train_size" else None
        w.append(w[-1] + 0.7 * np.average(updates, axis=0, weights=shares))
    near(generic(federation), w[-1])


@pytest.mark.parametrize("kind", ["constant", "polynomial", "hinge"])
def test_weightings(kind: str) -> None:
    """By hand for staleness 0, 3, 4 and 6, with a = 0.5 (polynomial), a = 10 and b = 4 (hinge)."""
    expected = {"constant": [1, 1, 1, 1], "polynomial": [1, 0.5, 5**-0.5, 7**-0.5], "hinge": [1, 1, 1, 1 / 21]}
    for hyper in (AsyncHyper(staleness=kind), BufferHyper(staleness=kind)):
        assert [hyper.weight(k) for k in (0, 3, 4, 6)] == pytest.approx(expected[kind])


def test_fedasync_mixes_running_statistics_as_it_mixes_weights() -> None:
    """At staleness 3 with half of alpha: the server does not take over the client's."""
    w = toy("fedavg", model="test_norm").server.initial_model()
    upload = Params(w.weights + 1, w.buffers + 2, w.spec)
    mixed = FedAsync(AsyncHyper(alpha=ALPHA)).combine(w, [Message(0, {"model": upload}, 1.0, 0, staleness=3)], "model")
    torch.testing.assert_close(mixed.weights, w.weights + ALPHA / 2)
    torch.testing.assert_close(mixed.buffers, w.buffers + 2 * ALPHA / 2)


def test_an_entry_that_nobody_sent_stays() -> None:
    """A version of one upload may lack what another upload of the method carries."""
    old = torch.zeros(5)
    messages = [Message(0, {"model": old + 1}, 1.0, 0, base={"model": old})]
    model = toy("fedavg", model="test_norm").server.initial_model()
    for one in (FedAsync(AsyncHyper()), FedBuff(BufferHyper())):
        assert one.combine(old, messages, "head") is old
        assert one.combine(model, messages, "head") is model  # with its running statistics


def test_a_buffer_for_everyone_is_fedavg() -> None:
    """All from the same version, weighted by training samples; running statistics too."""
    server = rule("fedbuff", buffer=5, concurrency=5, weights="train_size")
    federation, plain = toy("fedavg", server=server, model="test_norm"), toy("fedavg", model="test_norm")
    run(federation, 3)
    run(plain, 3)
    found, expected = federation.server.state["model"], plain.server.state["model"]
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.buffers, expected.buffers, rtol=0, atol=1e-12)


def test_variances_stay_positive() -> None:
    """A large server step moves weights, never running statistics."""
    federation = toy("fedavg", model="test_norm", server=rule("fedbuff", buffer=2, eta_g=30.0, concurrency=4))
    run(federation, 3)
    variances = federation.server.state["model"].tensors()["norm.running_var"]
    assert (variances > 0).all()


def test_a_learning_rate_that_would_decay_with_every_upload_is_refused() -> None:
    with pytest.raises(UserError, match="every upload makes one"):
        toy("fedavg", server=rule("fedasync"), lr_decay=0.99)
    toy("fedavg", server=rule("fedbuff", buffer=2), lr_decay=0.99)
