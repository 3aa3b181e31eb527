"""FedNTD against its formula in plain torch, and where it is FedAvg."""

import torch

from tests.engine.problems import generic, run, toy
from tests.methods.by_autograd import Objective, descend_on, logits, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, near

SIZES = [9, 5]


def objective(received: Array) -> Objective:
    """The classes but the true one taken out of the matrix, as two rows of two."""

    def loss(v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        others = y == 0
        student, teacher = (logits(w, x)[others].view(-1, 2) / 1.5 for w in (v, torch.tensor(received)))
        p, q = torch.softmax(teacher, 1), torch.softmax(student, 1)
        divergence = (p * torch.log(p / q)).sum(1).mean()
        return plain(v, x, y) + 0.8 * 1.5**2 * divergence

    return loss


def test_follows_the_formula() -> None:
    """Two clients, three rounds."""
    federation = toy("fedntd", sizes=SIZES, hp={"beta": 0.8, "tau": 1.5}, **PLAIN)
    run(federation, 3)
    w = initial(federation)
    for t in range(3):
        sent = [descend_on(w, local_batches(SIZES, t, i), objective(w)) for i in range(2)]
        w = (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), w)
