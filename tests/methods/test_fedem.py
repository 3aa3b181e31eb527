"""FedEM against EM written out sample by sample, and FedAvg where there is one component."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.federation.federation import Federation
from bench.settings import Settings
from tests.engine.problems import generic, personal, run, toy, toy_data, toy_partition
from tests.methods.by_autograd import logits
from tests.methods.reference import LR, PLAIN, Array, initial, local_batches, local_data, near

SIZES = [9, 5, 7]
M = 2


def likelihoods(components: list[Array], x: Array, target: Array) -> Array:
    """p_m(y | x), `[samples, components]`."""
    found = [torch.softmax(logits(torch.tensor(w), torch.tensor(x)), 1).numpy() for w in components]
    return np.stack([(p * target).sum(1) for p in found], axis=1)


def responsibilities(pi: Array, components: list[Array], x: Array, target: Array) -> Array:
    joint = pi * likelihoods(components, x, target)
    return np.asarray(joint / joint.sum(1, keepdims=True))


def test_follows_the_algorithm() -> None:
    """Three clients, three rounds: all responsibilities first, then the shares, then one component after the other."""
    federation = toy("fedem", sizes=SIZES, hp={"components": M}, **PLAIN)
    run(federation, 3)
    components = [initial(federation, draw=m) for m in range(M)]
    shares = [np.full(M, 1 / M)] * 3
    for t in range(3):
        sent = []
        for i in range(3):
            x, y = local_data(SIZES, i)
            q = responsibilities(shares[i], components, x, y)
            shares[i] = q.mean(0)
            own = []
            for m, w in enumerate(components):
                for bx, by in local_batches(SIZES, t, i):
                    rows = [next(k for k in range(len(x)) if (x[k] == row).all()) for row in bx]
                    leaf = torch.tensor(w, requires_grad=True)
                    fit = (torch.tensor(by) * torch.log_softmax(logits(leaf, torch.tensor(bx)), 1)).sum(1)
                    (-(torch.tensor(q[rows, m]) * fit).mean()).backward()  # type: ignore[no-untyped-call]
                    assert leaf.grad is not None
                    w = w - LR * leaf.grad.numpy()
                own.append(w)
            sent.append(own)
        components = [sum(n * own[m] for n, own in zip(SIZES, sent, strict=True)) / sum(SIZES) for m in range(M)]
    for i, w in personal(federation).items():
        near(federation.clients[i].state["shares"], shares[i])
        near(w, np.concatenate([shares[i], *components]))


def test_a_client_is_tested_by_its_mixture() -> None:
    """Its loss is that of sum_m pi_m p_m, computed without the composed model."""
    federation = toy("fedem", sizes=SIZES, hp={"components": M}, **PLAIN)
    scores = run(federation, 3)
    components = [federation.server.state[f"component{m}"].weights.numpy() for m in range(M)]
    data, partition = toy_data(), federation.device_data.partition
    losses = []
    for i in range(3):
        at = partition.test[i]
        p = likelihoods(components, data.x[at].astype(float), np.eye(3)[data.y[at]])
        losses.append(-np.log(p @ federation.clients[i].state["shares"].numpy()).mean())
    row = next(r for r in scores.metrics if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-10)


def test_one_component_is_fedavg() -> None:
    """Bit for bit, with BatchNorm; two components are something else."""
    fedavg = toy("fedavg", model="test_norm")
    run(fedavg, 3)
    for components in (1, 2):
        federation = toy("fedem", hp={"components": components}, model="test_norm")
        run(federation, 3)
        w = federation.server.state["component0"]
        assert torch.equal(w.weights, generic(fedavg)) == (components == 1)
        assert torch.equal(w.buffers, fedavg.server.state["model"].buffers) == (components == 1)


@pytest.mark.long
def test_clients_of_two_distributions_find_theirs() -> None:
    """Two of four clients have labels turned around: each pair comes to prefer a component of its own."""
    data = toy_data()
    y = data.y.copy()
    y[20:40] = (y[20:40] + 1) % 3
    turned = replace(data, y=y)
    settings = Settings(
        method="fedem", hp={"components": 2}, model="test_linear", dtype="float64", lr=0.3, momentum=0.5, batch_size=5,
        epochs=2, clients=4, seed=3,
    )  # fmt: skip
    federation = Federation(settings, dataset=turned, partition=toy_partition(turned, [10, 10, 10, 10]), public=None)
    run(federation, 25)
    a, b, c, d = (int(federation.clients[i].state["shares"].argmax()) for i in range(4))
    assert a == b != c == d


def test_a_new_client_learns_its_shares_alone() -> None:
    """By EM on the trained components."""
    federation = toy("fedem", sizes=SIZES, hp={"components": M}, new_clients=1, new_client_epochs=[0, 4], rounds=2)
    scores = run(federation, 2)
    new = federation.new[0]
    components = [federation.server.state[f"component{m}"].weights.numpy() for m in range(M)]
    x, y = local_data(SIZES, new)
    data, partition = toy_data(), federation.device_data.partition
    at = partition.test[new]
    for epochs in (0, 4):
        pi = np.full(M, 1 / M)
        for _ in range(epochs):
            pi = responsibilities(pi, components, x, y).mean(0)
        p = likelihoods(components, data.x[at].astype(float), np.eye(3)[data.y[at]]) @ pi
        row = next(
            r
            for r in scores.metrics
            if (r["metric"], r["mean"], r["quantity"], r["split"]) == (f"new{epochs}", "equal", "loss", "test")
        )
        np.testing.assert_allclose(row["value"], -np.log(p).mean(), rtol=1e-10)
