"""FedMRL with its defaults against its formulas in plain torch; with the others it is held against HtFLlib's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.federation.federation import Federation
from tests.engine.problems import personal, run, toy
from tests.methods.reference import LR, PLAIN, local_batches, near

SIZES = [9, 5]
WIDE: dict[str, Any] = {"client_models": ["test_norm"], "batch_size": 9}
"""Own models of six features beside the three of the shared one, and one batch for all samples."""

Parts = list[Tensor]


def initial(federation: Federation) -> tuple[Parts, Parts, Parts]:
    """The tensors of the shared model (inner, head), an own one (inner, norm, head) and a projector (matrix, bias)."""
    state = federation.clients[0].state
    shared, own = (
        [w.tensors()[e.name].clone() for e in w.spec.params] for w in (federation.server.state["model"], state["own"])
    )
    return shared, own, [state["projector"][:, :-1], state["projector"][:, -1]]


def trained(parts: tuple[Parts, Parts, Parts], round: int, client: int, weights: tuple[float, float]) -> Any:
    """One epoch of all three on one batch."""
    for x, target in local_batches(SIZES, round, client):
        leaves = [[t.clone().requires_grad_() for t in part] for part in parts]
        (small, small_head), (inner, inner_bias, scale, shift, head, bias), (matrix, offset) = leaves
        rows, y = torch.tensor(x), torch.tensor(target)
        hidden = rows @ inner.T + inner_bias
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        both = torch.cat([rows @ small.T, torch.relu(scale * hidden + shift)], 1)
        z = both @ matrix.T + offset
        losses = [-(y * logits.log_softmax(1)).sum(1).mean() for logits in (z[:, :3] @ small_head.T, z @ head.T + bias)]
        flat = [t for part in leaves for t in part]
        slopes = iter(torch.autograd.grad(weights[0] * losses[0] + weights[1] * losses[1], flat))
        parts = tuple([(t - LR * next(slopes)).detach() for t in part] for part in leaves)  # type: ignore[assignment]
    return parts


def test_follows_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, three rounds: a shared model of three features beside own ones of six, with BatchNorm."""
    monkeypatch.setattr("tests.methods.reference.BATCH", 9)
    weights = (0.7, 1.3)
    hp = {"average": "samples", "projector": "kept", "shared_weight": weights[0], "own_weight": weights[1]}
    federation = toy("fedmrl", sizes=SIZES, hp=hp, **PLAIN | WIDE)
    shared, own, matrix = initial(federation)
    run(federation, 3)
    owns, matrices = [own, own], [matrix, matrix]
    for t in range(3):
        sent = []
        for i in range(2):
            after, owns[i], matrices[i] = trained((shared, owns[i], matrices[i]), t, i, weights)
            sent.append(after)
        shared = [(9 * u + 5 * v) / 14 for u, v in zip(*sent, strict=True)]
    for i, w in personal(federation).items():
        projected = torch.cat([matrices[i][0], matrices[i][1].unsqueeze(1)], 1)
        near(w, torch.cat([t.flatten() for t in [*shared, *owns[i], projected]]).numpy())
