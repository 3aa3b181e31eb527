"""FML against its formulas in plain torch, and where it is FedAvg and Local."""

import torch

from tests.engine.problems import generic, personal, run, toy
from tests.methods.by_autograd import Objective, descend_on, logits, plain
from tests.methods.reference import PLAIN, Array, initial, local_batches, near

SIZES = [9, 5]


def taught(teacher: Array, labels: float) -> Objective:
    """labels CE + (1 - labels) KL(teacher || student)."""

    def loss(v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p, q = torch.softmax(logits(torch.tensor(teacher), x), 1), torch.softmax(logits(v, x), 1)
        return labels * plain(v, x, y) + (1 - labels) * (p * torch.log(p / q)).sum(1).mean()

    return loss


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; in every step both learn from what the other was before it."""
    federation = toy("fml", sizes=SIZES, hp={"alpha": 0.3, "beta": 0.8}, **PLAIN)
    run(federation, 3)
    meme = initial(federation)
    own = [meme, meme]
    for t in range(3):
        sent = []
        for i in range(2):
            v, w = own[i], meme
            for step in local_batches(SIZES, t, i):
                v, w = (
                    descend_on(v, iter([step]), taught(w, 0.3)),
                    descend_on(w, iter([step]), taught(v, 0.8)),
                )
            own[i] = v
            sent.append(w)
        meme = (9 * sent[0] + 5 * sent[1]) / 14
    near(generic(federation), meme)
    for i, found in personal(federation).items():
        near(found, own[i])
