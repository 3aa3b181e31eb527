"""PeFLL against one graph of torch from samples to models."""

import numpy as np
import torch
from torch import nn

from tests.engine.problems import personal, run, toy
from tests.methods.reference import PLAIN, descend, local_batches, local_data, near

SIZES = [9, 5, 7]
HP = {"lr": 0.03, "embedding": 2, "hidden": 4, "layers": 1, "embed_hidden": 5}


def test_follows_the_algorithm() -> None:
    """Three clients, four rounds; here nothing is passed back by hand, and Adam is torch's."""
    federation = toy("pefll", sizes=SIZES, hp=HP, **PLAIN)
    state = federation.server.state
    body = nn.Linear(4, 3, bias=False).double()
    top = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    hyper = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 21)).double()
    for net, part in ((top, "top"), (hyper, "hyper")):
        net.load_state_dict(state[part].tensors())
    body.weight.data = state["body"].tensors()["inner.weight"].clone()
    optimizer = torch.optim.Adam([*body.parameters(), *top.parameters(), *hyper.parameters()], lr=0.03)
    scale: tuple[torch.Tensor, torch.Tensor] | None = None
    run(federation, 4)
    data = [tuple(map(torch.tensor, local_data(SIZES, i))) for i in range(3)]
    for t in range(5):
        v = torch.stack([top(torch.cat([body(x), y], 1)).mean(0) for x, y in data])
        if scale is None:
            scale = v.detach().mean(), v.detach().std(correction=0)
        given = hyper((v - scale[0]) / scale[1])
        if t == 4:
            break
        trained = [descend(w.detach().numpy(), local_batches(SIZES, t, i)) for i, w in enumerate(given)]
        optimizer.zero_grad()
        (given * (given.detach() - torch.tensor(np.stack(trained)))).sum(1).mean().backward()
        optimizer.step()
    for i, w in personal(federation).items():
        near(w, given[i].detach().numpy())
