"""FedTHE against plain torch, its mixtures against torch's Adam on the paper's loss, and its new clients."""

import numpy as np
import torch
from torch import Tensor

from bench.model_call import Forward
from tests.engine.problems import generic, run, toy
from tests.methods.by_autograd import descend_on, features, logits
from tests.methods.reference import PLAIN, Array, initial, local_batches, local_data, near

SIZES = [13, 9]


def by_adam(g: Tensor, own: Tensor, z: Tensor, to_all: Tensor, to_own: Tensor, steps: int) -> float:
    """One sample's share of the generic head."""
    e = torch.ones(2, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([e], lr=0.1)
    p, q = g.softmax(0), own.softmax(0)
    cosine = (p @ q) / (p.norm() * q.norm())
    for _ in range(steps):
        weight = e.softmax(0)
        out = (weight[0] * g + weight[1] * own).softmax(0)
        entropy = -(out * out.log()).sum()
        alignment = weight[0] * (z - to_all).norm() + weight[1] * (z - to_own).norm()
        adam.zero_grad()
        (cosine * entropy + (1 - cosine) * alignment).backward()
        adam.step()
    return float(e.detach().softmax(0)[0])


def test_follows_the_formulas() -> None:
    """Two clients, two rounds, and every test sample's mixture."""
    federation = toy("fedthe", sizes=SIZES, hp={"personal_epochs": 2, "steps": 7}, **PLAIN)
    run(federation, 2)
    w0 = initial(federation)
    model, heads, centers = w0, [w0[12:], w0[12:]], [np.zeros(3)] * 2
    own: list[Array] = [w0, w0]
    for t in range(2):
        for i in range(2):
            x, y = local_data(SIZES, i)
            log_counts = torch.tensor(np.log(np.maximum(y.sum(0), 1e-8)))

            def balanced(v: Tensor, bx: Tensor, by: Tensor, n: Tensor = log_counts) -> Tensor:
                return -(by * (logits(v, bx) + n).log_softmax(1)).sum(1).mean()

            own[i] = w = descend_on(model, local_batches(SIZES, t, i), balanced)
            body = torch.tensor(w)

            def linear(h: Tensor, bx: Tensor, by: Tensor, body: Tensor = body) -> Tensor:
                return -(by * (features(body, bx) @ h.view(3, 3).T).log_softmax(1)).sum(1).mean()

            heads[i] = descend_on(heads[i], local_batches(SIZES, t, i, epochs=2), linear)
            centers[i] = features(body, torch.tensor(x)).numpy().mean(0)
        model = np.average(own, axis=0, weights=SIZES)
    near(generic(federation), model)
    center = np.average(centers, axis=0, weights=SIZES)
    near(federation.server.state["center"], center)
    probe = torch.tensor(np.random.default_rng(1).normal(size=(5, 4)) * 2)
    for i, found in federation.evaluator.personal(2).items():
        w, head = torch.tensor(own[i]), torch.tensor(heads[i]).view(3, 3)
        z = features(w, probe)
        g, mine = logits(w, probe), z @ head.T
        rows = []
        for k in range(5):
            e = by_adam(g[k], mine[k], z[k], torch.tensor(center), torch.tensor(centers[i]), steps=7)
            rows.append((e * g[k] + (1 - e) * mine[k]).numpy())
        np.testing.assert_allclose(Forward()(found, probe, stats="frozen").numpy(), rows, rtol=1e-8, atol=1e-10)


def test_a_new_client_trains_a_head_of_its_own() -> None:
    federation = toy("fedthe", sizes=SIZES, new_clients=1, new_client_epochs=[0, 2], rounds=1)
    losses = {r["metric"]: r["value"] for r in run(federation, 1).metrics if r["quantity"] == "loss"}
    assert losses["new0"] != losses["new2"]
