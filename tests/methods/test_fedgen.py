"""FedGen against its formulas, where it is FedAvg, and with labels that nobody has."""

import numpy as np
import torch
from torch import Tensor, nn

from bench.engine.batches import DrawAddress, draw_values
from bench.engine.device_data import SERVER
from bench.federation.federation import Federation
from bench.method import Categorical, Normal
from tests.engine.problems import generic, run, toy
from tests.methods.reference import (
    BATCH,
    LR,
    PLAIN,
    SEED,
    Array,
    backward,
    gradient,
    initial,
    local_batches,
    local_data,
    logits,
    softmax,
)

SIZES = [9, 5]
SMALL = {"hidden": 5, "noise": 2, "generator_steps": 3, "generator_batch": 6}


class Reference:
    """The generator and its training on the server, with torch's own modules and optimizer."""

    def __init__(self, federation: Federation) -> None:
        self.net = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
        start = federation.server.state["generator"].tensors()
        self.net.load_state_dict({k.removeprefix("layers."): v for k, v in start.items()}, strict=False)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.01, weight_decay=0.1)

    def __call__(self, eps: Array, y: Array) -> Tensor:
        return self.net(torch.from_numpy(np.concatenate([eps, np.eye(3)[y]], 1)))

    def train(self, heads: list[Array], counts: Array, round: int) -> None:
        self.adam.param_groups[0]["lr"] = 0.01 * 0.9**round
        at = (6, 3, DrawAddress(SEED, round, SERVER), 0)
        qualified = tuple((counts.max(0) > 1).astype(float))
        drawn = zip(
            draw_values(Normal((2,)), "eps", *at), draw_values(Categorical(qualified), "label", *at), strict=True
        )
        for eps, y in drawn:
            z = self(eps, y)
            loss = torch.zeros((), dtype=torch.float64)
            for head, mine in zip(heads, counts, strict=True):
                log_p = (z @ torch.from_numpy(head).T).log_softmax(1)
                for b in range(6):
                    loss = loss - mine[y[b]] / counts[:, y[b]].sum() * log_p[b, y[b]] / 6
            pairs = [((eps[p] - eps[q]) ** 2).mean() * (z[p] - z[q]).abs().mean() for p in range(6) for q in range(6)]
            loss = loss + 0.7 * torch.exp(-torch.stack(pairs).mean())
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()


def step(w: Array, x: Array, target: Array, made: Array, y: Array, latent: Array, alpha: float, beta: float) -> Array:
    """Gradient of CE + alpha CE(head(made), y) + beta KL(softmax head(latent) || softmax w(x))."""
    head, n = w[12:].reshape(3, 3), len(x)
    answer = alpha * (softmax(made @ head.T) - np.eye(3)[y]).T @ made / n
    taught = backward(w, x, beta * (softmax(logits(w, x)) - softmax(latent @ head.T)) / n)
    return gradient(w, x, target) + taught + np.concatenate([np.zeros(12), answer.ravel()])


def test_follows_the_formulas() -> None:
    """Two clients, three rounds: plain training first, then with the generator's samples."""
    of_clients = {"alpha": 2.0, "beta": 3.0, "decay": 0.9}
    of_server = {"diversity": 0.7, "generator_lr": 0.01, "generator_decay": 0.1}
    federation = toy("fedgen", sizes=SIZES, hp=SMALL | of_clients | of_server, **PLAIN)
    w, teacher = initial(federation), Reference(federation)
    run(federation, 3)
    counts = np.stack([local_data(SIZES, i)[1].sum(0) for i in range(2)])
    for t in range(3):
        sent = []
        for i in range(2):
            local = w
            for k, (x, target) in enumerate(local_batches(SIZES, t, i)):
                if t == 0:
                    local = local - LR * gradient(local, x, target)
                    continue
                at, n = (BATCH, k + 1, DrawAddress(SEED, t, i), 0), len(x)
                eps, other = (draw_values(Normal((2,)), name, *at)[k, :n] for name in ("eps", "label_eps"))
                y = draw_values(Categorical(tuple((counts.sum(0) > 0).astype(float))), "label", *at)[k, :n]
                with torch.no_grad():
                    teacher.net.eval()
                    made, latent = teacher(other, y).numpy(), teacher(eps, target.argmax(1)).numpy()
                    teacher.net.train()
                local = local - LR * step(local, x, target, made, y, latent, 2.0 * 0.9**t, 3.0 * 0.9**t)
            sent.append(local)
        teacher.train([one[12:].reshape(3, 3) for one in sent], counts, t)
        w = np.average(sent, axis=0, weights=SIZES)
    np.testing.assert_allclose(generic(federation).numpy(), w, rtol=1e-9)
    found = federation.server.state["generator"].tensors()
    for name, expected in teacher.net.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(found[f"layers.{name}"].numpy(), expected.numpy(), rtol=1e-8, atol=1e-10)


def test_labels_that_nobody_has() -> None:
    """A label without two samples at one client is never asked for, and none at all leaves the generator as it is."""
    single = toy("fedgen", sizes=[1, 1, 1], hp=SMALL)
    start = single.server.state["generator"]
    run(single, 2)
    assert single.server.state["generator"] is start

    federation = toy("fedgen", sizes=[1, 8], hp=SMALL)
    start = federation.server.state["generator"].weights
    run(federation, 3)
    trained = federation.server.state["generator"].weights
    # An input of the first layer that stands for a label never asked for moves by weight decay alone.
    asked = torch.stack([federation.clients[i].label_counts for i in range(2)]).amax(0) >= 2
    assert asked.tolist() == [True, True, False]
    before, after = (v[:25].reshape(5, 5)[:, 2:].abs() for v in (start, trained))
    assert bool((after < before)[:, ~asked].all())
    assert not bool((after < before)[:, asked].all())
