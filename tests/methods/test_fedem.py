"""FedEM against EM written out sample by sample, and FedAvg where there is one component."""

import numpy as np
import pytest
import torch

from tests.engine.problems import generic, personal, run, toy, toy_data
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


def test_clients_are_tested_by_mixtures_and_new_ones_learn_their_shares_alone() -> None:
    """Losses are those of sum_m pi_m p_m, computed without the composed model; new shares come by EM."""
    hp = {"components": M}
    federation = toy("fedem", sizes=SIZES, hp=hp, new_clients=1, new_client_epochs=[0, 4], rounds=2, **PLAIN)
    metrics = run(federation, 2).metrics
    components = [federation.server.state[f"component{m}"].weights.numpy() for m in range(M)]
    data, partition, new = toy_data(), federation.device_data.partition, federation.new[0]

    def loss(client: int, shares: Array) -> float:
        at = partition.test[client]
        p = likelihoods(components, data.x[at].astype(float), np.eye(3)[data.y[at]])
        return float(-np.log(p @ shares).mean())

    own = {i: federation.clients[i].state["shares"].numpy() for i in federation.clients.ids}
    expected = {"pm": np.mean([loss(i, shares) for i, shares in own.items()])}
    pi = np.full(M, 1 / M)
    for epochs in range(5):
        expected[f"new{epochs}"] = loss(new, pi)
        pi = responsibilities(pi, components, *local_data(SIZES, new)).mean(0)
    for name in ("pm", "new0", "new4"):
        of = (name, "equal", "loss", "test")
        (found,) = [r["value"] for r in metrics if (r["metric"], r["mean"], r["quantity"], r["split"]) == of]
        np.testing.assert_allclose(found, expected[name], rtol=1e-10)


@pytest.mark.long
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
