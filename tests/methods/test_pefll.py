"""PeFLL against one graph of torch from samples to models, and clients that are what their samples are."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from bench.data import Partition
from bench.federation.federation import Federation
from bench.settings import Settings
from tests.engine.problems import personal, run, toy, toy_data, toy_partition
from tests.methods.reference import DATA, PLAIN, descend, local_batches, local_data, near

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


def test_equal_samples_make_equal_models() -> None:
    """In another order, also of a client that never trained; other samples make another model."""
    data, part = toy_data(), toy_partition(DATA, [8, 6, 8, 4])
    x, y = data.x.copy(), data.y.copy()
    x[14:22], y[14:22] = x[:8][::-1], y[:8][::-1]
    settings = Settings(
        method="pefll", hp={**HP, "lr": 0.01}, model="test_linear", dtype="float64", lr=0.1, batch_size=4, clients=4,
        seed=3, participation=0.5, selection="round_robin",
    )  # fmt: skip
    federation = Federation(settings, dataset=replace(data, x=x, y=y), partition=part, public=None)
    federation.advance()
    assert federation.server.selected == [0, 1]
    models = {i: w.weights for i, w in federation.evaluator.personal(federation.version).items()}
    torch.testing.assert_close(models[0], models[2], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(models[0], models[1], atol=1e-6)


def test_labels_count_in_embeddings() -> None:
    """The same inputs with other labels make another model."""
    found = []
    for classes in ([0, 1, 2], [1, 2, 0]):
        data = replace(DATA, y=np.array(classes)[DATA.y])
        part: Partition = toy_partition(data, SIZES)
        settings = Settings(method="pefll", hp=HP, model="test_linear", dtype="float64", clients=3, seed=3)
        federation = Federation(settings, dataset=data, partition=part, public=None)
        found.append(federation.evaluator.personal(0)[0].weights)
    assert not torch.allclose(*found, atol=1e-6)


def test_embeddings_models_and_slopes_travel() -> None:
    """Down the embedding network, a model and a slope; up an embedding, the trained model and the network's slopes."""
    federation = toy("pefll", sizes=SIZES, hp=HP)
    for _ in range(2):
        federation.advance()
    row, network = federation.ledger[-1], 12 + (6 * 5 + 5) + (5 * 2 + 2)
    assert row["up"] == row["down_receivers"] == 3 * 8 * (network + 21 + 2)
