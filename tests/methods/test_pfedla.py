"""pFedLA against plain torch."""

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


def test_layers_are_what_has_one_name() -> None:
    w = toy("fedavg", model="test_norm", sizes=[5, 4]).server.initial_model()
    assert layers(w) == [(0, 30), (30, 42), (42, 63)]  # inner with its bias, norm, head
