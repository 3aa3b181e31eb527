"""FedMRL against its formulas in plain torch, the dolls one in the other, and models of several architectures."""

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


@pytest.mark.parametrize("average", ["samples", "clients"])
@pytest.mark.parametrize("projector", ["kept", "initial"])
def test_follows_the_formulas(average: str, projector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, three rounds: a shared model of three features beside own ones of six, with BatchNorm."""
    monkeypatch.setattr("tests.methods.reference.BATCH", 9)
    weights = (0.7, 1.3)
    hp = {"average": average, "projector": projector, "shared_weight": weights[0], "own_weight": weights[1]}
    federation = toy("fedmrl", sizes=SIZES, hp=hp, **PLAIN | WIDE)
    shared, own, matrix = initial(federation)
    run(federation, 3)
    owns, matrices = [own, own], [matrix, matrix]
    for t in range(3):
        sent = []
        for i in range(2):
            after, owns[i], fused = trained((shared, owns[i], matrices[i]), t, i, weights)
            sent.append(after)
            if projector == "kept":
                matrices[i] = fused
        a, b = (9, 5) if average == "samples" else (1, 1)
        shared = [(a * u + b * v) / (a + b) for u, v in zip(*sent, strict=True)]
    for i, w in personal(federation).items():
        projected = torch.cat([matrices[i][0], matrices[i][1].unsqueeze(1)], 1)
        near(w, torch.cat([t.flatten() for t in [*shared, *owns[i], projected]]).numpy())


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)], ids=["shared", "own"])
def test_one_doll_is_in_the_other(weights: tuple[float, float]) -> None:
    """With the shared head's loss alone, the other entries of the representation learn nothing, yet the own body does
    from the first ones; with the own head's alone, the shared body does, and all entries."""
    federation = toy("fedmrl", sizes=SIZES, hp={"shared_weight": weights[0], "own_weight": weights[1]}, **PLAIN | WIDE)
    (small, small_head), own, (matrix, offset) = initial(federation)
    run(federation, 1)
    (small_after, small_head_after), own_after, (matrix_after, offset_after) = initial(federation)
    alone = weights == (1.0, 0.0)
    assert torch.equal(own[-2], own_after[-2]) == alone
    assert torch.allclose(small_head, small_head_after, rtol=1e-14, atol=0) != alone  # a mean rounds
    for before, after in ((matrix, matrix_after), (offset, offset_after)):
        assert torch.equal(before[3:], after[3:]) == alone
        assert not torch.equal(before[:3], after[:3])
    assert not torch.equal(small, small_after)
    assert not torch.equal(own[0], own_after[0])


def test_only_the_shared_model_travels() -> None:
    federation = toy("fedmrl", sizes=SIZES, client_models=["test_norm", "test_linear"])
    run(federation, 2)
    assert len({w.spec.arch for w in federation.evaluator.personal(2).values()}) == 2
    row = federation.ledger[-1]
    assert row["up"] == row["down_receivers"] == 2 * 8 * 21


def test_a_shared_model_wider_than_a_client_s_is_refused() -> None:
    federation = toy("fedmrl", sizes=SIZES, model="test_norm", client_models=["test_linear"])
    with pytest.raises(ValueError, match="has 3, the cell's model 6"):
        run(federation, 1)
