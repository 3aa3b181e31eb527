"""FedADMM against the paper's form with its prices, its fixed point, and FedDyn for full participation."""

import numpy as np
import pytest
import torch

from tests.engine.problems import generic, run, toy
from tests.methods.reference import LR, PLAIN, gradient, initial, local_batches, local_data, near

SIZES, RHO, ETA = [9, 5, 7], 0.4, 0.7


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_follows_the_algorithm(participation: float) -> None:
    """Three clients, four rounds, with y_i and the messages as the paper has them."""
    hp = {"rho": RHO, "eta": ETA}
    federation = toy("fedadmm", sizes=SIZES, hp=hp, participation=participation, **PLAIN)
    theta = initial(federation)
    w, y = [theta] * 3, [np.zeros(21)] * 3
    for t in range(4):
        run(federation, 1)
        messages = []
        for i in federation.server.selected:
            local = theta
            for x, target in local_batches(SIZES, t, i):
                local = local - LR * (gradient(local, x, target) + y[i] + RHO * (local - theta))
            price = y[i] + RHO * (local - theta)
            messages.append((local - w[i]) + (price - y[i]) / RHO)
            w[i], y[i] = local, price
        theta = theta + ETA * np.mean(messages, axis=0)
    assert len(messages) == (3 if participation == 1 else 2)
    near(generic(federation), theta)


def test_with_everybody_it_is_feddyn() -> None:
    """With eta 1 and rho as FedDyn's alpha, to rounding; with half of the clients it is not."""
    for participation, same in ((1.0, True), (0.5, False)):
        a = toy("fedadmm", hp={"rho": 0.3}, participation=participation, model="test_norm")
        b = toy("feddyn", hp={"alpha": 0.3}, participation=participation, model="test_norm")
        run(a, 4)
        run(b, 4)
        assert torch.allclose(generic(a), generic(b), rtol=1e-9, atol=1e-9) == same


@pytest.mark.long
def test_its_fixed_point_is_the_common_minimum() -> None:
    """There the mean of the clients' losses has no slope, however long they train; at FedAvg's it has one."""
    slope = {}
    for name in ("fedadmm", "fedavg"):
        hp = {"rho": 0.5} if name == "fedadmm" else {}
        settings = {"batch_size": 64, "epochs": 10, "lr": 0.5, "momentum": 0.0, "weight_decay": 0.1}
        federation = toy(name, sizes=[7, 7, 7], hp=hp, model="logistic", **settings)
        for _ in range(60):
            federation.advance()
        w = federation.server.state["model"].tensors()
        weight, bias = (w[f"head.{k}"].clone().requires_grad_() for k in ("weight", "bias"))
        total = 0.05 * 3 * (weight.square().sum() + bias.square().sum())
        for x, y in (local_data([7, 7, 7], i) for i in range(3)):
            scores = torch.tensor(x) @ weight.T + bias
            total = total - (torch.tensor(y) * torch.log_softmax(scores, 1)).sum(1).mean()
        slope[name] = max(float(g.abs().max()) for g in torch.autograd.grad(total, [weight, bias]))
    assert slope["fedadmm"] < 1e-5
    assert slope["fedavg"] > 1e-3
