"""SPFL against its formulas, and where it is another method."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from bench.config.grid import load_grid
from bench.data import Partition
from bench.federation.federation import Federation
from bench.models.factory import build
from bench.params import Spec
from bench.settings import Settings
from methods.spfl import cosines, rows
from tests.engine.problems import BOTH_MODELS, everything, personal, run, toy, toy_data
from tests.methods.reference import LR, PLAIN, Array, gradient, initial, local_batches, local_data, near

SIZES = [9, 5, 4]
N, D = len(SIZES), 21
STAGES = (slice(0, 12), slice(12, 21))  # body and head of the linear model
EQUAL: dict[str, Any] = {"sizes": [8, 8, 8, 8]}


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
    ],
)
def test_follows_the_formulas(method: str, hp: dict[str, Any], steps: int) -> None:
    """Three clients, four rounds, re-synchronised in rounds 0 and 2."""
    federation = toy(method, sizes=SIZES, hp={"gamma": 2, "steps_per_batch": steps, **hp}, **PLAIN)
    chosen = federation.method.hp
    models = [initial(federation)] * N
    shares: list[Array] = []
    for t in range(4):
        if t % 2 == 0:
            models = [np.mean(models, axis=0)] * N
            probes = [models[i] - descend(models[i], t, i, 1, steps) for i in range(N)]
            shares = [softmax_rows([d[stage] for d in probes]) for stage in STAGES]
            if "local" in chosen.similarity:
                shares[1] = np.eye(N)
        after = [descend(models[i], t, i, 0, steps) for i in range(N)]
        new = [w.copy() for w in models]
        for stage, share in zip(STAGES, shares, strict=True):
            a = mixing(share, chosen.mix, chosen.scale)
            for i in range(N):
                steps_taken = sum(a[i, j] * (after[j] - models[j])[stage] for j in range(N))
                mixed = sum(a[i, j] * after[j][stage] for j in range(N))
                new[i][stage] = mixed if chosen.mix == "weights" else models[i][stage] + chosen.alpha * steps_taken
        models = new
        federation.advance()
        for i, w in personal(federation).items():
            near(w, models[i])


@pytest.mark.parametrize("model", BOTH_MODELS)
@pytest.mark.parametrize("method", ["spfl", "spfl_w"])
def test_uniform_similarity_with_one_step_is_fedavg_with_equal_weights(method: str, model: str) -> None:
    """Clients of equal size, to rounding, buffers as well; with two steps it is not."""
    fedavg = toy("fedavg", model=model, **EQUAL)
    run(fedavg, 3)
    expected = fedavg.server.state["model"]
    for steps in (1, 2):
        hp = {"similarity": ("uniform", "uniform"), "steps_per_batch": steps, "gamma": 2}
        federation = toy(method, hp=hp, model=model, **EQUAL)
        run(federation, 3)
        for w in federation.server.state["models"].values():
            assert torch.allclose(w.weights, expected.weights, rtol=1e-9, atol=1e-11) == (steps == 1)
            if steps == 1:
                torch.testing.assert_close(w.buffers, expected.buffers, rtol=1e-9, atol=1e-11)


def test_per_fedavg_of_the_paper_is_spfl_w_with_uniform_similarity() -> None:
    """FedAvg whose clients take two steps per batch, every client counting the same: that row of `spfl_table1`."""
    hp = {"similarity": ("uniform", "uniform"), "gamma": None}
    federation = toy("spfl_w", sizes=SIZES, hp=hp, **PLAIN)
    w = initial(federation)
    for t in range(3):
        federation.advance()
        w = np.mean([descend(w, t, i, 0, 2) for i in range(N)], axis=0)
    for found in personal(federation).values():
        near(found, w)


@pytest.mark.parametrize("model", BOTH_MODELS)
def test_similar_to_nobody_without_resynchronisation_is_local(model: str) -> None:
    """SPFL-w bit for bit, SPFL to the rounding of w + (v - w)."""
    hp = {"similarity": ("local", "local"), "gamma": None, "steps_per_batch": 1}
    weights, updates, alone = (
        toy("spfl_w", hp=hp, model=model),
        toy("spfl", hp=hp, model=model),
        toy("local", model=model),
    )
    for federation in (weights, updates, alone):
        run(federation, 3)
    for i, w in personal(alone).items():
        assert torch.equal(personal(weights)[i], w)
        torch.testing.assert_close(personal(updates)[i], w, rtol=1e-11, atol=1e-13)


def test_with_one_stage_it_is_one_cosine_over_the_whole_model() -> None:
    whole = toy("spfl", hp={"stages": (), "similarity": ("softmax",)})
    run(whole, 1)
    (found,) = whole.server.state["cosines"]
    assert found.shape == (5, 5)
    body, _ = two_stages().server.state["cosines"]
    assert not torch.allclose(found, body)


def two_stages() -> Federation:
    federation = toy("spfl")
    run(federation, 1)
    return federation


def test_similarities_are_symmetric_and_their_rows_sum_to_one() -> None:
    federation = two_stages()
    found = federation.method.relations(federation.server)
    assert list(found) == ["similarity of first stage", "similarity of head"]
    for s in found.values():
        torch.testing.assert_close(s, s.T)
        torch.testing.assert_close(s.diag(), torch.ones(5, dtype=s.dtype))
        shares = rows(s, "softmax")
        torch.testing.assert_close(shares.sum(1), torch.ones(5, dtype=s.dtype))
        assert shares.max() / shares.min() <= np.exp(2)


def test_an_update_of_zero_has_no_direction() -> None:
    s = cosines([torch.zeros(3), torch.tensor([1.0, 0, 0]), torch.tensor([0, 2.0, 0])])
    assert s.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_identical_clients_are_equally_similar() -> None:
    """Three clients with the same samples, in full batches."""
    same, test = np.arange(10), np.arange(40, 60)
    partition = Partition((same,) * 3, (same[:0],) * 3, (test,) * 3, test)
    settings = Settings(method="spfl", model="test_linear", dtype="float64", clients=3, batch_size=10, epochs=2, seed=3)
    federation = Federation(settings, dataset=toy_data(), partition=partition, public=None)
    run(federation, 2)
    for s in federation.server.state["cosines"]:
        torch.testing.assert_close(rows(s, "softmax"), torch.full_like(s, 1 / 3))


def test_two_steps_are_one_of_twice_the_rate_where_the_gradient_is_constant() -> None:
    """The gradient changes in proportion to the step: half the rate, a quarter of the difference."""

    def difference(lr: float) -> float:
        plain: dict[str, Any] = {**PLAIN, "sizes": [4, 4], "lr": lr}
        two, one = toy("spfl", **plain), toy("spfl", hp={"steps_per_batch": 1}, **{**plain, "lr": 2 * lr})
        run(two, 1)
        run(one, 1)
        return float((personal(two)[0] - personal(one)[0]).norm())

    assert difference(2e-3) / difference(1e-3) == pytest.approx(4, rel=0.02)


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


def test_one_similarity_per_stage() -> None:
    with pytest.raises(ValidationError, match="similarity needs 3 entries"):
        toy("spfl", hp={"stages": (("inner",), ("head",))})


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


def test_a_stage_that_the_model_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"named 'inner\.fc' or below it; there are inner\.weight, "):
        toy("spfl", hp={"stages": (("inner.fc",),)})


def test_every_layer_is_a_stage_in_the_grid_of_figure_4() -> None:
    cell = load_grid("spfl_figure4", []).cells[0]
    spec = Spec.of(cell.model, build(cell.model, (1, 28, 28), 10))
    stages = [tuple(prefixes) for prefixes in cell.hp["stages"]]
    parts = [spec.without(tuple(itertools.chain(*stages))), *map(spec.part, stages)]
    layers = [{e.name.rpartition(".")[0] for e in part.params} for part in parts]
    assert layers == [{"body.conv1"}, {"body.conv2"}, {"body.fc1"}, {"head"}]
