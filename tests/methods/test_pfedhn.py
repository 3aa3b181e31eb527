"""pFedHN against plain torch and its optimizer."""

from typing import Any

import pytest
import torch
from torch import nn

from bench.federation.federation import Federation
from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, descend, local_batches, near

SIZES = [9, 5, 7]
HP = {"lr": 0.05, "embedding_lr": 0.02, "momentum": 0.8, "weight_decay": 0.01, "hidden": 4, "embedding": 2}


def rebuilt(federation: Federation, layers: int) -> tuple[nn.Module, nn.Parameter]:
    """The hypernetwork as torch's own module, and the embeddings."""
    parts: list[nn.Module] = [nn.Linear(2, 4)]
    for _ in range(layers):
        parts += [nn.ReLU(), nn.Linear(4, 4)]
    net = (nn.Sequential(*parts, nn.Linear(4, 21)) if layers else nn.Linear(2, 21, bias=False)).double()
    net.load_state_dict(federation.server.state["hyper"].tensors())
    return net, nn.Parameter(federation.server.state["embeddings"].clone())


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_follows_the_algorithm(layers: int) -> None:
    """Three clients, four rounds; a client's update passes through torch's autograd and SGD with momentum."""
    federation = toy("pfedhn", sizes=SIZES, hp={**HP, "layers": layers}, **PLAIN)
    net, v = rebuilt(federation, layers)
    common: dict[str, Any] = {"momentum": 0.8, "weight_decay": 0.01}
    optimizer = torch.optim.SGD([{"params": net.parameters(), "lr": 0.05}, {"params": [v], "lr": 0.02}], **common)
    run(federation, 4)
    for t in range(4):
        optimizer.zero_grad()
        for i in range(3):
            given = net(v[i])
            trained = descend(given.detach().numpy(), local_batches(SIZES, t, i))
            given.backward(given.detach() - torch.tensor(trained))
        optimizer.step()
    for i, w in personal(federation).items():
        near(w, net(v[i]).detach().numpy())


def test_a_steep_gradient_is_clipped() -> None:
    """The first step of the embeddings is lr times the clip."""
    federation = toy("pfedhn", hp={"clip": 1e-3, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0})
    before = federation.server.state["embeddings"]
    federation.advance()
    assert float((federation.server.state["embeddings"] - before).norm()) == pytest.approx(1e-3, rel=1e-2)
