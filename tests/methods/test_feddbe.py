"""FedDBE against its formulas in plain torch, and FedAvg without its modules."""

import numpy as np
import torch
from torch.nn import functional

from tests.engine.problems import generic, run, toy, toy_data
from tests.methods.by_autograd import features
from tests.methods.reference import LR, PLAIN, initial, local_batches, near

SIZES = [9, 5]
HP = {"kl": 0.8, "momentum": 0.3, "mean_lr": 0.05}


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; the first finds the global mean."""
    federation = toy("feddbe", sizes=SIZES, hp=HP, **PLAIN)
    scores = run(federation, 3)
    w0, center = torch.tensor(initial(federation)), None
    means = [torch.zeros(3).double()] * 2
    for t in range(3):
        sent, found = [], []
        for i in range(2):
            w, own, running = w0, means[i], torch.zeros(3).double()
            for bx, by in local_batches(SIZES, t, i):
                x, y = torch.tensor(bx), torch.tensor(by)
                v, m = w.clone().requires_grad_(), own.clone().requires_grad_()
                z = features(v, x)
                running = 0.7 * running + 0.3 * z.mean(0)
                logits = torch.stack([v[12:].view(3, 3) @ (row + (m if center is not None else 0)) for row in z])
                loss = -(y * torch.log_softmax(logits, 1)).sum(1).mean()
                if center is not None:
                    loss = loss + 0.8 * (0.5 * (running - center) ** 2).mean()
                a, b = torch.autograd.grad(loss, (v, m), allow_unused=True)
                w, own = w - LR * a, own - 0.05 * b if b is not None else own
                running = running.detach()
            means[i] = own
            sent.append(w)
            found.append(running)
        w0 = (9 * sent[0] + 5 * sent[1]) / 14
        center = (9 * found[0] + 5 * found[1]) / 14 if center is None else center
    near(generic(federation), w0.numpy())
    assert center is not None
    near(federation.server.state["center"], center.numpy())
    losses, data = [], toy_data()
    for i in range(2):
        near(federation.clients[i].state["mean"], means[i].numpy())
        at = federation.device_data.partition.test[i]
        logits = (features(w0, torch.tensor(data.x[at]).double()) + means[i]) @ w0[12:].view(3, 3).T
        losses.append(float(functional.cross_entropy(logits, torch.tensor(data.y[at]))))
    row = next(r for r in scores.metrics if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-10)
