"""FedMTL against the slope of its whole objective, Local and MR-MTL, and what Omega does."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from methods.fedmtl import precision
from tests.engine.problems import personal, run, toy
from tests.methods.by_autograd import plain
from tests.methods.reference import LR, PLAIN, Array, initial, local_batches, near

SIZES = [9, 5, 7]
LAM = 0.4


def omega_of(models: Array, relation: str) -> Array:
    """By scipy's matrix root and a plain inverse."""
    n = len(models)
    if relation == "laplacian":
        return np.eye(n) - np.ones((n, n)) / n
    root = np.real(sqrtm(models @ models.T))
    return np.asarray(np.linalg.inv(root / np.trace(root) + np.eye(n) / n) / n)


@pytest.mark.parametrize("relation", ["learned", "laplacian"])
def test_follows_the_objective(relation: str) -> None:
    """Three clients, four rounds; each step is down the slope of all of CE + lam/2 tr(W^T Omega W) in one w_i."""
    federation = toy("fedmtl", sizes=SIZES, hp={"lam": LAM, "relation": relation}, **PLAIN)
    run(federation, 4)
    models = np.stack([initial(federation)] * 3)
    for t in range(4):
        omega, new = torch.tensor(omega_of(models, relation)), []
        for i in range(3):
            w = torch.tensor(models[i])
            for x, y in local_batches(SIZES, t, i):
                v = w.clone().requires_grad_()
                whole = torch.stack([v if j == i else torch.tensor(models[j]) for j in range(3)])
                loss = plain(v, torch.tensor(x), torch.tensor(y)) + LAM / 2 * torch.trace(whole.T @ omega @ whole)
                w = w - LR * torch.autograd.grad(loss, v)[0]
            new.append(w.numpy())
        models = np.stack(new)
    for i, found in personal(federation).items():
        np.testing.assert_allclose(found.numpy(), models[i], rtol=1e-7, atol=1e-9)  # sqrtm of a singular matrix


def test_the_laplacian_is_mrmtl_step_by_step() -> None:
    """With one step in a round, where the mean is as old as the model, and clients of equal sizes."""
    settings = {"sizes": [6, 6, 6], "batch_size": 6, "epochs": 1, "momentum": 0.0}
    federation = toy("fedmtl", hp={"lam": 0.5, "relation": "laplacian"}, **settings)
    other = toy("mrmtl", hp={"lam": 0.5}, **settings)
    run(federation, 4)
    run(other, 4)
    for i, w in personal(federation).items():
        near(w, personal(other)[i].numpy())


def test_models_come_together_the_more_lam_weighs() -> None:
    spread = []
    for lam in (0.0, 0.5, 2.0):
        federation = toy("fedmtl", hp={"lam": lam}, sizes=SIZES, momentum=0.0)
        run(federation, 4)
        models = torch.stack(list(personal(federation).values()))
        spread.append(float((models - models.mean(0)).norm()))
    assert spread[0] > spread[1] > spread[2]


def test_omega_is_least_along_what_models_have_in_common() -> None:
    """Equal models: 1/(N + 1) along the mean, 1 across; like models attract each other more than unlike ones."""
    equal = precision(torch.ones(4, 7, dtype=torch.float64))
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(equal @ ones, ones / 5)
    across = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(equal @ across, across)
    models = torch.tensor([[1.0, 0.1, 0.0], [1.0, -0.1, 0.0], [0.1, 0.0, 1.0]], dtype=torch.float64)
    omega = precision(models)
    assert omega[0, 1] < omega[0, 2] < 0.05
    torch.testing.assert_close(omega, omega.T)
