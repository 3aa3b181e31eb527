"""FedKD against its formulas in plain torch and numpy's SVD, and what its factors keep."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.low_rank import compressed, restored
from tests.engine.problems import generic, personal, run, toy
from tests.methods.by_autograd import features, logits, plain
from tests.methods.reference import LR, PLAIN, Array, initial, local_batches, near

SIZES = [9, 5]


def truncated(update: Array, energy: float) -> Array:
    """Both matrices with the fewest singular values that reach the energy, unless their factors were no smaller."""
    parts = []
    for matrix in (update[:12].reshape(3, 4), update[12:].reshape(3, 3)):
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        rank = next(k for k in range(1, 4) if (s[:k] ** 2).sum() >= energy * (s**2).sum())
        small = rank * sum(matrix.shape) < matrix.size
        parts.append(((u[:, :rank] * s[:rank]) @ v[:rank] if small else matrix).ravel())
    return np.concatenate(parts)


def one_step(t: Array, s: Array, w: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Teacher, student and map, each by the gradient of its own loss."""
    inputs, labels = torch.tensor(x), torch.tensor(y)

    def loss(teacher: torch.Tensor, student: torch.Tensor, mapped: torch.Tensor, name: str) -> torch.Tensor:
        both = {"teacher": teacher, "student": student}
        task = {k: plain(v, inputs, labels) for k, v in both.items()}
        p = {k: torch.softmax(logits(v, inputs), 1) for k, v in both.items()}
        other = "student" if name == "teacher" else "teacher"
        kl = (p[other] * (p[other] / p[name]).log()).sum(1).mean()
        hidden = ((features(teacher, inputs) - features(student, inputs) @ mapped.T) ** 2).mean()
        return task[name] + (kl + hidden) / (task["teacher"] + task["student"])

    fixed = [torch.tensor(v) for v in (t, s, w)]
    free = [v.clone().requires_grad_() for v in fixed]
    (of_t,) = torch.autograd.grad(loss(free[0], fixed[1], fixed[2], "teacher"), free[:1])
    of_s, of_w = torch.autograd.grad(loss(fixed[0], free[1], free[2], "student"), free[1:])
    return t - LR * of_t.numpy(), s - LR * of_s.numpy(), w - LR * of_w.numpy()


def test_follows_the_formulas() -> None:
    """Two clients, three rounds; the energy rises over two, and both truncations and whole matrices occur."""
    federation = toy("fedkd", sizes=SIZES, hp={"start": 0.6, "end": 0.9, "rounds": 2}, **PLAIN)
    run(federation, 3)
    shared = initial(federation)
    teachers, maps = [shared, shared], [np.eye(3), np.eye(3)]
    whole: set[bool] = set()
    for r in range(3):
        energy = 0.6 + 0.3 * min(1, r / 2)
        sent = []
        for i in range(2):
            s = shared
            for x, y in local_batches(SIZES, r, i):
                teachers[i], s, maps[i] = one_step(teachers[i], s, maps[i], x, y)
            sent.append(truncated(s - shared, energy))
            whole.add(np.allclose(sent[-1], s - shared))
        shared = shared + truncated((9 * sent[0] + 5 * sent[1]) / 14, energy)
    assert whole == {True, False}
    near(generic(federation), shared)
    for i, w in personal(federation).items():
        near(w, teachers[i])
        near(federation.clients[i].state["map"], maps[i])


@pytest.mark.long
@given(seed=st.integers(0, 1000), energy=st.floats(0.05, 1.0))
def test_no_more_is_lost_than_the_energy_allows(seed: int, energy: float) -> None:
    old = toy("fedkd").server.initial_model()
    new = old.with_weights(old.weights + torch.from_numpy(np.random.default_rng(seed).normal(size=21)))
    update = compressed(old, new, energy)
    lost = (restored(old, update).weights - new.weights).square().sum()
    assert lost <= (1 - energy) * (new.weights - old.weights).square().sum() + 1e-20
    assert sum(f.numel() for factors in update for f in factors) <= old.spec.d


def test_students_follow_the_server_and_teachers_may_be_of_any_architecture() -> None:
    """All clients take part, whatever the participation; a copy goes from the server's model of the round before."""
    federation = toy("fedkd", client_models=["test_norm", "test_linear"], participation=0.5)
    run(federation, 2)
    before = federation.server.state["model"].weights
    run(federation, 1)
    for i in federation.clients.ids:
        torch.testing.assert_close(federation.clients[i].state["student"].weights, before, rtol=1e-12, atol=1e-14)
    assert len({w.spec.arch for w in federation.evaluator.personal(3).values()}) == 2
