"""SPFL against its formulas, its stages, and what it does beside training."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from bench.config.grid import load_grid
from bench.models.factory import build
from bench.params import Spec
from methods.spfl import cosines
from tests.engine.problems import everything, personal, run, toy
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, local_data, near

SIZES = [9, 5, 4]
N, D = len(SIZES), 21
STAGES = (slice(0, 12), slice(12, 21))  # body and head of the linear model


def descend(w: Array, t: int, i: int, stream: int, steps: int) -> Array:
    for x, y in local_batches(SIZES, t, i, stream=stream):
        for _ in range(steps):
            w = w - LR * gradient(w, x, y)
    return w


def softmax_rows(updates: list[Array]) -> Array:
    """Equations 3 and 6, written entry by entry."""
    s = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in updates] for a in updates])
    return np.asarray(np.exp(s) / np.exp(s).sum(1, keepdims=True))


def mixing(shares: Array, mix: str, scale: str) -> Array:
    if mix == "weights":
        return shares
    by_size = shares * np.array(SIZES)
    return np.asarray(by_size / (sum(SIZES) if scale == "paper" else by_size.sum(1, keepdims=True)))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("method", "hp"),
    [
        ("spfl", {}),
        ("spfl", {"scale": "paper", "alpha": 0.3}),
        ("spfl_w", {}),
        ("spfl", {"similarity": ("softmax", "local")}),
        ("spfl", {"stages": (), "similarity": ("softmax",)}),
    ],
)
def test_follows_the_formulas(method: str, hp: dict[str, Any], steps: int) -> None:
    """Three clients, four rounds, re-synchronised in rounds 0 and 2."""
    federation = toy(method, sizes=SIZES, hp={"gamma": 2, "steps_per_batch": steps, **hp}, **PLAIN)
    chosen = federation.method.hp
    stages = STAGES if chosen.stages else (slice(0, D),)
    models = [initial(federation)] * N
    shares: list[Array] = []
    for t in range(4):
        if t % 2 == 0:
            models = [np.mean(models, axis=0)] * N
            probes = [models[i] - descend(models[i], t, i, 1, steps) for i in range(N)]
            shares = [softmax_rows([d[stage] for d in probes]) for stage in stages]
            if "local" in chosen.similarity:
                shares[1] = np.eye(N)
        after = [descend(models[i], t, i, 0, steps) for i in range(N)]
        new = [w.copy() for w in models]
        for stage, share in zip(stages, shares, strict=True):
            a = mixing(share, chosen.mix, chosen.scale)
            for i in range(N):
                steps_taken = sum(a[i, j] * (after[j] - models[j])[stage] for j in range(N))
                mixed = sum(a[i, j] * after[j][stage] for j in range(N))
                new[i][stage] = mixed if chosen.mix == "weights" else models[i][stage] + chosen.alpha * steps_taken
        models = new
        federation.advance()
        for i, w in personal(federation).items():
            near(w, models[i])


def test_an_update_of_zero_has_no_direction() -> None:
    s = cosines([torch.zeros(3), torch.tensor([1.0, 0, 0]), torch.tensor([0, 2.0, 0])])
    assert s.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_traffic() -> None:
    """A model down and one up per client; a re-synchronisation sends one mean to all and asks for a second upload."""
    federation = toy("spfl", sizes=SIZES, hp={"gamma": 2})
    run(federation, 3)
    found = [[row[name] // (8 * D) for name in ("up", "down_distinct", "down_receivers")] for row in federation.ledger]
    assert found == [[2 * N, 1, N], [N, N, N], [2 * N, 1, N]]


def test_everyone_takes_part_whatever_the_participation() -> None:
    federation, full = toy("spfl", participation=0.4), toy("spfl")
    run(federation, 2)
    run(full, 2)
    assert all(torch.equal(w, personal(full)[i]) for i, w in personal(federation).items())


def test_fine_tuning_is_the_client_s_own_and_thrown_away() -> None:
    """Table 8: steps of plain SGD at its rate and batch size from the personalized model; training goes on without."""
    fine = {"fine_steps": 3, "fine_lr": 0.2, "fine_batch": 100}
    federation, plain = toy("spfl", sizes=SIZES, hp=fine, **PLAIN), toy("spfl", sizes=SIZES, **PLAIN)
    run(federation, 2)
    run(plain, 2)
    for i, w in personal(plain).items():
        expected, (x, y) = w.numpy(), local_data(SIZES, i)
        for _ in range(3):
            expected = expected - 0.2 * gradient(expected, x, y)
        near(personal(federation)[i], expected)
    found, expected_state = everything(federation), everything(plain)
    assert all(torch.equal(tensor, expected_state[name]) for name, tensor in found.items())


@pytest.mark.parametrize("gamma", [2, None])
@pytest.mark.parametrize("fine_steps", [0, 2])
def test_a_new_client_starts_from_the_mean_of_the_models_there_are(gamma: int | None, fine_steps: int) -> None:
    """Three rounds, of which the last is not followed by a re-synchronisation."""
    hp = {"gamma": gamma, "fine_steps": fine_steps}
    federation = toy("spfl", hp=hp, new_clients=1, rounds=3, new_client_epochs=(0, 2))
    scores = run(federation, 3)
    assert {m["metric"] for m in scores.metrics} >= {"new0", "new2"}
    down = federation.clients.down(federation.new[0])
    models = federation.server.state["models"].values()
    near(down["model"].weights, np.mean([w.weights.numpy() for w in models], axis=0))


def test_stages_without_a_similarity_or_a_layer_are_refused() -> None:
    with pytest.raises(ValidationError, match="similarity needs 3 entries"):
        toy("spfl", hp={"stages": (("inner",), ("head",))})
    with pytest.raises(ValueError, match=r"named 'inner\.fc' or below it; there are inner\.weight, "):
        toy("spfl", hp={"stages": (("inner.fc",),)})


def test_every_layer_is_a_stage_in_the_grid_of_figure_4() -> None:
    cell = load_grid("spfl_figure4", []).cells[0]
    spec = Spec.of(cell.model, build(cell.model, (1, 28, 28), 10))
    stages = [tuple(prefixes) for prefixes in cell.hp["stages"]]
    parts = [spec.without(tuple(itertools.chain(*stages))), *map(spec.part, stages)]
    layers = [{e.name.rpartition(".")[0] for e in part.params} for part in parts]
    assert layers == [{"body.conv1"}, {"body.conv2"}, {"body.fc1"}, {"head"}]
