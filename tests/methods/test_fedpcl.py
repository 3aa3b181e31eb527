"""FedPCL against its formulas in plain torch, and what its prototypes choose."""

import numpy as np
import torch
from torch import Tensor

from bench.model_call import Forward
from tests.engine.problems import personal, run, toy, toy_data
from tests.methods.by_autograd import Objective, descend_on, features
from tests.methods.reference import PLAIN, Array, initial, local_batches, local_data, near

SIZES = [9, 2]  # the second lacks a class
TAU = 0.5
Own = dict[int, Array]


def unit(z: Array) -> Array:
    return np.asarray(z / np.linalg.norm(z))


def objective(together: Own, sets: list[Own]) -> Objective:
    """Sample by sample: the global prototypes, then each client's, with global ones where it has none."""

    def choice(z: Tensor, prototypes: Own, c: int) -> Tensor:
        scores = {k: z @ torch.tensor(p) / TAU for k, p in prototypes.items()}
        return torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[c]

    def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=v.dtype)
        for row, one_hot in zip(x, y, strict=True):
            z, c = features(v, row[None])[0], int(one_hot.argmax())
            z = z / z.norm()
            of_clients = [choice(z, {**together, **own}, c) for own in sets]
            total = total + choice(z, together, c) + sum(of_clients, torch.zeros(())) / len(sets)
        return total / len(x)

    return loss


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; nothing is trained in the first, heads never are."""
    federation = toy("fedpcl", sizes=SIZES, hp={"tau": TAU}, **PLAIN)
    run(federation, 3)
    own = [initial(federation)] * 2
    together: Own = {}
    sets: list[Own] = []
    for t in range(3):
        if sets:
            own = [descend_on(own[i], local_batches(SIZES, t, i), objective(together, sets)) for i in range(2)]
        sets = []
        for i in range(2):
            x, y = local_data(SIZES, i)
            z = np.array([unit(row) for row in features(torch.tensor(own[i]), torch.tensor(x)).numpy()])
            sets.append({c: z[y[:, c] == 1].mean(0) for c in range(3) if y[:, c].any()})
        assert len(sets[1]) < 3
        together = {c: np.mean([s[c] for s in sets if c in s], axis=0) for c in range(3)}
    near(federation.server.state["prototypes"], np.array([together[c] for c in range(3)]))
    for i, w in personal(federation).items():
        near(w[:12], own[i][:12])
        near(w[12:], np.concatenate([sets[i].get(c, np.zeros(3)) for c in range(3)]))
        near(federation.clients[i].state["personal"].weights[12:], initial(federation)[12:])


def test_the_most_similar_own_prototype_is_chosen() -> None:
    """Product by product, with BatchNorm; classes that a client has not are not chosen."""
    federation = toy("fedpcl", sizes=SIZES, model="test_norm")
    run(federation, 3)
    x = torch.from_numpy(toy_data().x).double()
    for i, w in federation.evaluator.personal(3).items():
        state = federation.clients[i].state
        z = Forward().features(state["personal"], x, stats="frozen")
        has = [c for c in range(3) if state["known"][c]]
        expected = [max(has, key=lambda c: float(row @ state["own"][c])) for row in z]
        assert Forward()(w, x, stats="frozen").argmax(1).tolist() == expected
        assert len(set(expected)) > 1
