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


def test_without_the_term_it_is_fedavg() -> None:
    """And with it after one step, too: student and teacher agree there, and the divergence has no slope."""
    for hp, steps, same in (({"beta": 0.0}, 3, True), ({"beta": 5.0}, 1, True), ({"beta": 5.0}, 3, False)):
        federation, fedavg = toy("fedntd", hp=hp, steps=steps), toy("fedavg", steps=steps)
        run(federation, 2)
        run(fedavg, 2)
        assert torch.allclose(generic(federation), generic(fedavg), rtol=1e-9, atol=1e-11) == same


def test_the_frozen_teacher_moves_no_statistics() -> None:
    federation, fedavg = toy("fedntd", hp={"beta": 0.0}, model="test_norm"), toy("fedavg", model="test_norm")
    run(federation, 3)
    run(fedavg, 3)
    a, b = federation.server.state["model"], fedavg.server.state["model"]
    torch.testing.assert_close(a.buffers, b.buffers, rtol=1e-12, atol=1e-12)
