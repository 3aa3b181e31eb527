"""FedGC against its formulas in plain torch, and which classes are predicted."""

import numpy as np
import torch
from torch import Tensor

from bench.model_call import Forward
from bench.params import join
from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.by_autograd import descend_on, logits
from tests.methods.reference import PLAIN, initial, local_batches, local_data, near

SIZES = [9, 2, 13]  # the second lacks a class that both others have
RATE = 0.3


def correction(heads: Tensor, has: list[list[int]]) -> Tensor:
    """Class by class and row by row; heads `[3, 3, 3]`."""
    total = torch.zeros((), dtype=heads.dtype)
    for k in range(3):
        for c in has[k]:
            v = torch.stack([heads[j, c] for j in range(3) if c in has[j]]).mean(0).detach()
            mine = torch.exp(v @ v)
            others = [torch.exp(heads[j, d] @ v) for j in range(3) if c not in has[j] for d in has[j]]
            total = total - torch.log(mine / (mine + sum(others, torch.zeros(()))))
    return total


def test_follows_the_formulas() -> None:
    """Three clients and rounds; a class that one of them lacks is set against that client's rows."""
    federation = toy("fedgc", sizes=SIZES, hp={"correction": RATE}, **PLAIN)
    run(federation, 3)
    model = initial(federation)
    body, heads = model[:12], np.array([model[12:]] * 3)
    has = [[c for c in range(3) if local_data(SIZES, i)[1][:, c].any()] for i in range(3)]
    assert [len(classes) for classes in has] == [3, 2, 3]
    for t in range(3):
        bodies = []
        for i in range(3):

            def objective(v: Tensor, x: Tensor, y: Tensor, own: tuple[int, ...] = tuple(has[i])) -> Tensor:
                return -(y[:, own] * torch.log_softmax(logits(v, x)[:, own], 1)).sum(1).mean()

            w = descend_on(np.concatenate([body, heads[i]]), local_batches(SIZES, t, i), objective)
            bodies.append(w[:12])
            heads[i] = w[12:]
        body = (9 * bodies[0] + 2 * bodies[1] + 13 * bodies[2]) / 24
        leaf = torch.tensor(heads, requires_grad=True)
        correction(leaf.view(3, 3, 3), has).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        assert not leaf.grad[0].any()  # nobody's class is foreign to who has all
        assert leaf.grad[1].any()
        heads = heads - RATE * leaf.grad.numpy()
    for i, w in personal(federation).items():
        near(w, np.concatenate([body, heads[i]]))


def test_absent_classes_are_not_predicted() -> None:
    """Where the head has a bias; of the classes that a client has, the model's own choice."""
    federation = toy("fedgc", sizes=SIZES, model="test_norm")
    federation.advance()
    has = federation.clients[1].label_counts > 0
    heads = list(federation.server.state["heads"])
    liked = torch.zeros_like(heads[1].weights)
    liked[-3:] = 100.0 * ~has  # the biases
    heads[1] = heads[1].with_weights(heads[1].weights + liked)
    federation.server.state["heads"] = heads
    x = torch.from_numpy(toy_data().x).double()
    plain_model = join(federation.server.state["body"], federation.server.state["heads"][1])
    scores = Forward()(plain_model, x, stats="frozen")
    assert not has[scores.argmax(1)].any()
    found = Forward()(federation.evaluator.personal(1)[1], x, stats="frozen").argmax(1)
    assert torch.equal(found, scores.masked_fill(~has, -torch.inf).argmax(1))
