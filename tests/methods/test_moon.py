"""MOON against its formula in plain torch, and where it is FedAvg."""

import torch

from tests.engine.problems import generic, run, toy
from tests.methods.by_autograd import Objective, descend_on, features, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, near

SIZES = [9, 5]


def objective(received: Array, previous: Array) -> Objective:
    """Eq. 3 with the cosine written out."""

    def loss(v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def similarity(other: Array) -> torch.Tensor:
            a, b = features(v, x), features(torch.tensor(other), x)
            return torch.exp((a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1) / 0.4)

        near_, far = similarity(received), similarity(previous)
        return plain(v, x, y) - 0.7 * torch.log(near_ / (near_ + far)).mean()

    return loss


def test_follows_the_formula() -> None:
    """Two clients, three rounds."""
    federation = toy("moon", sizes=SIZES, hp={"mu": 0.7, "tau": 0.4}, **PLAIN)
    run(federation, 3)
    w = initial(federation)
    previous = [w, w]
    for t in range(3):
        sent = [descend_on(w, local_batches(SIZES, t, i), objective(w, previous[i])) for i in range(2)]
        previous, w = sent, (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), w)
