"""FedALA against its algorithm in plain torch, and its limits: FedAvg and Local."""

import math
from typing import Any

import numpy as np
import torch

from bench.method import Feed
from tests.engine.problems import generic, personal, remarks, run, toy
from tests.methods.by_autograd import plain
from tests.methods.reference import PLAIN, batches, descend, initial, local_batches, local_data, near

SIZES = [9, 5]
ETA = 2.0
HEAD = slice(12, 21)


def learned(own: Any, received: Any, mix: Any, client: int, t: int, passes: int | None) -> Any:
    """The mixing weights of the head after one pass, or after as many as it takes."""
    x, target = local_data(SIZES, client)
    losses: list[float] = []
    while True:
        of_pass = []
        for at in batches(Feed(stream=1), SIZES[client], max(SIZES), math.ceil(SIZES[client] / 4), t, client):
            weights = torch.tensor(mix, requires_grad=True)
            full = torch.cat([torch.ones(12, dtype=torch.float64), weights])
            w = torch.tensor(own) + (torch.tensor(received) - torch.tensor(own)) * full
            loss = plain(w, torch.tensor(x[at]), torch.tensor(target[at]))
            (g,) = torch.autograd.grad(loss, weights)
            mix = np.clip(mix - ETA * g.numpy(), 0, 1)
            of_pass.append(float(loss.detach()))
        losses.append(float(np.mean(of_pass)))
        if len(losses) == passes or (len(losses) > 10 and np.std(losses[-10:]) < 0.1):
            return mix


def test_follows_the_algorithm() -> None:
    """Two clients, four rounds; to convergence in the second one, a pass in each of the others.

    Where mixtures are tested, those after a round are the starts of the next one.
    """
    hp = {"eta": ETA, "share": 1.0}
    federation = toy("fedala", sizes=SIZES, hp=hp, **PLAIN)
    run(federation, 4)
    mixing = toy("fedala", sizes=SIZES, hp=hp | {"tested": "mixed"}, **PLAIN)
    w = initial(federation)
    own, mix = [w, w], [np.ones(9), np.ones(9)]
    for t in range(4):
        sent, tested = [], personal(mixing)
        for i in range(2):
            if t > 0:
                mix[i] = learned(own[i], w, mix[i], i, t, None if t == 1 else 1)
            start = w.copy()
            start[HEAD] = own[i][HEAD] + (w - own[i])[HEAD] * mix[i]
            near(tested[i], start)
            sent.append(descend(start, local_batches(SIZES, t, i)))
        own, w = sent, (9 * sent[0] + 5 * sent[1]) / 14
        mixing.advance()
    near(generic(federation), w)
    for i, found in personal(federation).items():
        near(found, own[i])
        near(federation.clients[i].state["mix"][HEAD], mix[i])
    assert torch.equal(generic(mixing), generic(federation))
    assert any(((m > 0) & (m < 1)).any() for m in mix)


def test_weights_of_one_are_fedavg_and_of_zero_local() -> None:
    """Bit for bit, whichever layers are mixed; once they are learned it is neither."""
    fedavg, local = toy("fedavg"), toy("local")
    run(fedavg, 3)
    run(local, 3)
    for layers in (["head"], [""], []):
        ones = toy("fedala", hp={"eta": 0.0, "layers": layers})
        run(ones, 3)
        assert torch.equal(generic(ones), generic(fedavg))
        assert remarks(ones)
    zeros = toy("fedala", hp={"eta": 0.0, "layers": [""]})
    for i in zeros.clients.ids:
        zeros.clients[i].state["mix"] = torch.zeros_like(zeros.clients[i].state["mix"])
    run(zeros, 3)
    for i, w in personal(local).items():
        torch.testing.assert_close(personal(zeros)[i], w, rtol=0, atol=0)
    learning = toy("fedala", hp={"layers": [""]})
    run(learning, 3)
    assert not torch.equal(generic(learning), generic(fedavg))
    assert not any(torch.equal(personal(learning)[i], w) for i, w in personal(local).items() if i != 2)


def test_lower_layers_are_the_received_ones() -> None:
    """Their weights stay 1; those of the head are in [0, 1] and some have moved."""
    federation = toy("fedala", sizes=SIZES, hp={"eta": ETA})
    run(federation, 3)
    for i in range(2):
        mix = federation.clients[i].state["mix"]
        assert (mix[:12] == 1).all()
        assert ((mix >= 0) & (mix <= 1)).all()
        assert (mix[HEAD] < 1).any()
