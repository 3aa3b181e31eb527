"""FedTGP: server and clients against plain torch, the clients against FedProto's, and margins that come about."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.federation.federation import Federation
from tests.engine.problems import assert_same_personal, personal, run, toy
from tests.methods.by_autograd import Objective, descend_on, features, plain
from tests.methods.reference import LR, PLAIN, Array, initial, local_batches, local_data, near

SIZES = [9, 5]
Sent = list[tuple[Tensor, int]]


def network(federation: Federation) -> nn.Module:
    """The server's network as it begins, as a module of its own."""
    embedding = nn.Embedding(3, 3, dtype=torch.float64)
    layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    tensors = federation.server.state["net"].tensors()
    embedding.load_state_dict({"weight": tensors["embedding.weight"]})
    layers.load_state_dict({k.removeprefix("layers."): v for k, v in tensors.items() if k.startswith("layers.")})
    return nn.Sequential(embedding, layers)


def margin_by_hand(sent: Sent) -> float:
    """Pair by pair; the centre of a class is the plain mean of what the clients sent of it."""
    centers = {c: torch.stack([z for z, d in sent if d == c]).mean(0) for c in {c for _, c in sent}}
    nearest = dict.fromkeys(centers, float("inf"))
    for a, b in itertools.permutations(centers, 2):
        nearest[a] = min(nearest[a], float((centers[a] - centers[b]).norm()))
    return max(nearest.values())


def train_on_server(net: nn.Module, sent: Sent, steps: int, tau: float) -> Array:
    """Plain SGD; one class mean after the other enters the loss of a step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    delta = min(margin_by_hand(sent), tau)
    for _ in range(steps):
        optimizer.zero_grad()
        prototypes = net(torch.arange(3))
        total: Tensor = torch.zeros((), dtype=torch.float64)
        for z, c in sent:
            scores = torch.stack([-(z - p).norm() - (delta if k == c else 0.0) for k, p in enumerate(prototypes)])
            total = total + functional.cross_entropy(scores[None], torch.tensor([c])) / len(sent)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return np.asarray(net(torch.arange(3)).detach().numpy())


@pytest.mark.parametrize("tau", [100.0, 0.2])
def test_follows_the_algorithm(tau: float) -> None:
    """Two clients, three rounds; the small tau caps the margin."""

    def objective(prototypes: Array | None) -> Objective:
        def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
            if prototypes is None:
                return plain(v, x, y)
            gap = features(v, x) - torch.tensor(prototypes)[y.argmax(1)]
            return plain(v, x, y) + 0.7 * gap.square().mean()

        return loss

    federation = toy("fedtgp", sizes=SIZES, hp={"lam": 0.7, "server_steps": 7, "tau": tau, "predict": "head"}, **PLAIN)
    net = network(federation)
    run(federation, 3)
    own, prototypes = [initial(federation)] * 2, None
    for t in range(3):
        own = [descend_on(own[i], local_batches(SIZES, t, i), objective(prototypes)) for i in range(2)]
        sent: Sent = []
        for i in range(2):
            x, y = local_data(SIZES, i)
            z = features(torch.tensor(own[i]), torch.tensor(x))
            sent += [(z[y[:, c] == 1].mean(0), c) for c in range(3) if y[:, c].any()]
        assert (margin_by_hand(sent) > tau) == (tau == 0.2)
        prototypes = train_on_server(net, sent, 7, tau)
    near(federation.server.state["prototypes"], prototypes)
    for i, w in personal(federation).items():
        near(w, own[i])


def test_clients_do_what_fedprotos_do() -> None:
    """Given the same prototypes, to the byte; with BatchNorm, tested by prototypes."""
    hp = {"lam": 2.0, "predict": "prototype"}
    settings = {"hp": hp, "model": "test_norm"}
    tgp, proto = toy("fedtgp", **settings), toy("fedproto", hp=hp | {"distance": "samples"}, model="test_norm")
    run(tgp, 2)
    run(proto, 1)
    fresh = toy("fedtgp", **settings)
    run(fresh, 1)
    assert_same_personal(fresh, proto)  # in the first round nothing is known
    proto.server.state.update({k: fresh.server.state[k] for k in ("prototypes", "known")})
    run(proto, 1)
    assert_same_personal(tgp, proto)
