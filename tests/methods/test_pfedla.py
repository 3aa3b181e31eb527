"""pFedLA against plain torch, Local and FedAvg for shares that stand still, and layers that learn by themselves."""

import torch
from torch import Tensor, nn

from bench.federation.federation import Federation
from methods.layers import layers
from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, descend, initial, local_batches, near

SIZES = [9, 5, 7]
HP = {"lr": 0.5, "embedding": 2, "hidden": 4}


def network(federation: Federation, i: int) -> nn.Module:
    """A client's hypernetwork as torch's own module: 2 layers x 3 clients."""
    net = nn.Sequential(
        nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 6), nn.ReLU()
    ).double()
    net.load_state_dict(federation.server.state["nets"][i].tensors())
    return net


def mixed(net: nn.Module, v: Tensor, models: list[Tensor]) -> Tensor:
    """The layers of 12 and 9 weights, each with shares of its own."""
    shares: Tensor = net(v).view(2, 3)
    shares = shares / shares.sum(1, keepdim=True)
    parts = [
        sum(shares[layer, j] * models[j][cut] for j in range(3)) for layer, cut in ((0, slice(12)), (1, slice(12, 21)))
    ]
    return torch.cat(parts)  # type: ignore[arg-type]


def test_follows_the_algorithm() -> None:
    """Three clients, four rounds; the mean that was sent is differentiated through by torch."""
    federation = toy("pfedla", sizes=SIZES, hp=HP, **PLAIN)
    nets = [network(federation, i) for i in range(3)]
    vs = [v.clone().requires_grad_() for v in federation.server.state["embeddings"]]
    models = [torch.tensor(initial(federation))] * 3
    run(federation, 4)
    for t in range(4):
        trained = []
        for i in range(3):
            sent = mixed(nets[i], vs[i], models)
            after = torch.tensor(descend(sent.detach().numpy(), local_batches(SIZES, t, i)))
            parameters = [*nets[i].parameters(), vs[i]]
            slopes = torch.autograd.grad(sent, parameters, sent.detach() - after)
            with torch.no_grad():
                for p, g in zip(parameters, slopes, strict=True):
                    p -= 0.5 * g
            trained.append(after)
        models = trained
    for i, w in personal(federation).items():
        near(w, mixed(nets[i], vs[i], models).detach().numpy())


def fixed(federation: Federation, shares: Tensor) -> None:
    """Let the networks of all clients give these shares `[clients, layers, clients]`, whatever the embedding."""
    state = federation.server.state
    nets = []
    for net, mine in zip(state["nets"], shares, strict=True):
        tensors = {name: torch.zeros_like(t) for name, t in net.tensors().items()} | {"6.bias": mine.flatten()}
        nets.append(net.with_weights(torch.cat([tensors[e.name].flatten() for e in net.spec.params])))
    state["nets"] = nets


def test_own_shares_are_local_and_equal_shares_fedavg() -> None:
    """With networks that rest, clients of equal sizes and BatchNorm."""
    for name in ("local", "fedavg"):
        federation = toy("pfedla", hp={"lr": 0.0}, sizes=[6, 6, 6], model="test_norm")
        other = toy(name, sizes=[6, 6, 6], model="test_norm")
        layer = torch.eye(3, dtype=torch.float64) if name == "local" else torch.ones(3, 3, dtype=torch.float64)
        fixed(federation, layer[:, None].repeat(1, 3, 1))
        run(federation, 3)
        run(other, 3)
        for i, w in personal(federation).items():
            expected = other.server.state["model"].weights if name == "fedavg" else personal(other)[i]
            torch.testing.assert_close(w, expected, rtol=1e-9, atol=1e-11)


def test_a_share_grows_with_what_its_model_has_in_common_with_the_training() -> None:
    """The shares after one step move along the model's product with the update, in each layer; not against it."""
    federation = toy("pfedla", hp=HP, sizes=SIZES)
    run(federation, 2)
    state = federation.server.state
    shares = [network(federation, i)(state["embeddings"][i]).view(2, 3).detach() for i in range(3)]
    before, models = [s / s.sum(1, keepdim=True) for s in shares], state["models"]
    sent = {i: federation.clients.down(i)["weights"] for i in range(3)}
    federation.advance()
    for i in range(3):
        new = network(federation, i)(federation.server.state["embeddings"][i]).view(2, 3).detach()
        moved = federation.server.state["models"][i] - sent[i]
        gain = new / new.sum(1, keepdim=True) - before[i]
        along = torch.stack([models[:, :12] @ moved[:12], models[:, 12:] @ moved[12:]])
        assert float((gain * along).sum()) > 0
        assert not torch.allclose(gain[0], gain[1])


def test_layers_are_what_has_one_name() -> None:
    w = toy("fedavg", model="test_norm", sizes=[5, 4]).server.initial_model()
    assert layers(w) == [(0, 30), (30, 42), (42, 63)]  # inner with its bias, norm, head
