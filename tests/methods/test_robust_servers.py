"""Robust servers against numbers worked out by hand, and what holds for all uploads."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.errors import UserError
from bench.method import SERVER_RULES, Message, Params, mean
from methods.bulyan import _middle
from tests.engine.problems import generic, numbered_model, run, toy

RULES = ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "norm_clip", "centered_clip", "bulyan")

POINTS = st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=8)


def messages(rows: Any) -> list[Message]:
    return [Message(i, {"model": torch.tensor(row, dtype=torch.float64)}, i + 1.0, 0) for i, row in enumerate(rows)]


def combine(name: str, rows: Any, old: Tensor | None = None, **settings: Any) -> Any:
    """The new value from uploads in rows, with old value 0."""
    kind = SERVER_RULES.get(name)
    sent = messages(rows)
    zero = torch.zeros_like(sent[0]["model"]) if old is None else old
    return kind(kind.Hyper(**settings)).update({}, zero, sent, "model")[0]


FIVE = [[1, 50], [2, 10], [3, 20], [40, 30], [-90, 0]]
ONE_LIAR = [[0.0], [1.0], [2.0], [4.0], [1000.0]]


@pytest.mark.parametrize(
    ("name", "rows", "settings", "expected"),
    [
        ("median", [[1, 9], [5, 7], [100, 8]], {}, [5, 8]),
        ("median", [[1, 9], [5, 7], [100, 8], [3, -50]], {}, [4, 7.5]),
        ("trimmed_mean", FIVE, {"share": 0.2}, [2, 20]),  # one at each end of each column
        ("trimmed_mean", FIVE, {"share": 0.4}, [2, 20]),  # the median
        # With one liar the two nearest others count: 1 + 4, 1 + 1, 1 + 4, 4 + 9, in squares of distances.
        ("krum", ONE_LIAR, {"share": 0.2}, [1]),
        ("multi_krum", ONE_LIAR, {"share": 0.2}, [(0 + 1 + 2 + 4) / 4]),
        ("multi_krum", ONE_LIAR, {"share": 0.4}, [1]),  # three uploads are left, each with one neighbour
        # Krum selects 2, 3, 1, 4 and 0, in this order; the three nearest to their median count.
        ("bulyan", [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [100.0]], {"share": 0.14}, [2]),
        # Without a liar far away, one number of a near upload may still be: each column has its own middle.
        ("bulyan", [[0.0, 0.0]] * 3 + [[0.1, 0.0], [0.0, 0.1], [0.0, 0.5], [9.0, 9.0]], {"share": 0.14}, [0, 0]),
        # From the mean 2, distances are 2, 1 and 3.
        ("geometric_median", [[0.0], [1.0], [5.0]], {"iterations": 1}, [(1 + 5 / 3) / (1 / 2 + 1 + 1 / 3)]),
        ("centered_clip", [[3.0]], {"tau": 1.0, "iterations": 2}, [2]),
    ],
)
def test_by_hand(name: str, rows: Any, settings: dict[str, Any], expected: list[float]) -> None:
    assert combine(name, rows, **settings).tolist() == pytest.approx(expected)


@given(POINTS)
def test_without_liars_three_rules_are_the_mean(rows: list[list[float]]) -> None:
    """All clients count alike."""
    for name in ("trimmed_mean", "multi_krum", "bulyan"):
        torch.testing.assert_close(combine(name, rows, share=0.0), mean(messages(rows), "model", equal=True))


@given(st.integers(1, 60), st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.49]))
def test_a_share_is_rounded_up(clients: int, share: float) -> None:
    """Ten clients with 5 % expect one malicious client, 20 % of ten are two; without a share none is expected."""
    for name in ("trimmed_mean", "krum", "multi_krum", "bulyan"):
        kind = SERVER_RULES.get(name)
        expected = kind(kind.Hyper(share=share)).expects(clients)
        assert share * clients <= expected + 1e-6 < share * clients + 1


@pytest.mark.parametrize("name", ["trimmed_mean", "multi_krum", "bulyan", "krum"])
@pytest.mark.parametrize("clients", [4, 5, 7])
def test_one_far_upload_of_a_small_round_is_left_out(name: str, clients: int) -> None:
    """With a share of 10 %, which is less than one client: rounded down, the first three would be the plain mean."""
    assert combine(name, [[float(k)] for k in range(clients - 1)] + [[1e6]], share=0.1) < clients


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_the_smallest_rounds_have_a_value(name: str, clients: int) -> None:
    """Also with more expected malicious clients than a rule can leave out."""
    rows = [[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]][:clients]
    share = {"share": 0.49} if "share" in SERVER_RULES.get(name).Hyper.model_fields else {}
    new = combine(name, rows, **share)
    assert torch.isfinite(new).all()
    if name == "trimmed_mean":
        assert new.tolist() == combine("median", rows).tolist()


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_rounding_does_not_choose_what_bulyan_averages(noise: list[float]) -> None:
    """Of 0, 1, 1, 1.5, 2 and 3 the median is 1.25, and three numbers are 0.25 away: the first two count."""
    rows = torch.tensor([[0.0], [1.0], [1.0], [1.5], [2.0], [3.0]])
    rounded = rows + 4 * torch.finfo(torch.float32).eps * torch.tensor(noise).unsqueeze(1)
    assert float(_middle(rounded, 2)) == pytest.approx(1, abs=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_rounding_does_not_choose_krums_upload(noise: list[float]) -> None:
    """All corners of a hexagon have the same score: the first is the new value."""
    corners = [[math.cos(k * math.pi / 3), math.sin(k * math.pi / 3)] for k in range(6)]
    rounded = torch.tensor(corners) * (1 + 8 * torch.finfo(torch.float32).eps * torch.tensor(noise).unsqueeze(1))
    sent = [Message(k, {"model": row}, 1.0, 0) for k, row in enumerate(rounded)]
    kind = SERVER_RULES.get("krum")
    new, _ = kind(kind.Hyper(share=0.2)).update({}, torch.zeros(2), sent, "model")
    torch.testing.assert_close(new, torch.tensor([1.0, 0.0]), rtol=1e-5, atol=1e-5)


@given(st.integers(1, 7), st.lists(st.floats(-10, 10), min_size=2, max_size=2))
def test_of_equal_uploads_every_selecting_rule_gives_that_upload(clients: int, row: list[float]) -> None:
    assert combine("krum", [row] * clients).tolist() == row
    for name in ("median", "trimmed_mean", "multi_krum", "geometric_median", "bulyan"):
        torch.testing.assert_close(combine(name, [row] * clients), torch.tensor(row, dtype=torch.float64))


def test_many_steps_reach_the_geometric_median() -> None:
    """Of the corners of a triangle without a large angle it is the point that sees all sides under 120 degrees."""
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])
    point = combine("geometric_median", corners.tolist(), iterations=200).numpy()
    ways = (corners - point) / np.linalg.norm(corners - point, axis=1, keepdims=True)
    assert [ways[i] @ ways[i - 1] for i in range(3)] == pytest.approx([math.cos(math.radians(120))] * 3, abs=1e-6)


def test_norms_are_clipped_around_the_old_value() -> None:
    """Updates (3, 4), of norm 5, and (0, 1) with a norm of 2 at most."""
    old = torch.tensor([10.0, 20.0], dtype=torch.float64)
    clipped = combine("norm_clip", [[13, 24], [10, 21]], old, norm=2.0)
    assert clipped.tolist() == pytest.approx([10 + 3 * 0.4 / 2, 20 + (4 * 0.4 + 1) / 2])


@given(POINTS)
def test_with_a_large_radius_clipping_is_the_mean(rows: list[list[float]]) -> None:
    for name, setting in (("norm_clip", "norm"), ("centered_clip", "tau")):
        clipped = combine(name, rows, **{setting: 1e9})
        torch.testing.assert_close(clipped, mean(messages(rows), "model", equal=True), rtol=1e-9, atol=1e-9)


def test_centered_clipping_remembers_the_last_update() -> None:
    """Tau 1, one client. Version 1: the update 3 is clipped to v = 1. Version 2: from v = 1, 3 is 2 away: v = 2."""
    kind = SERVER_RULES.get("centered_clip")
    rule, old = kind(kind.Hyper(tau=1.0)), torch.zeros(1, dtype=torch.float64)
    new, state = rule.update({}, old, messages([[3.0]]), "model")
    assert (new.tolist(), state["v"].tolist()) == ([1], [1])
    new, state = rule.update(state, new, messages([[4.0]]), "model")
    assert (new.tolist(), state["v"].tolist()) == ([3], [2])


@pytest.mark.parametrize("name", RULES)
def test_a_liar_moves_the_server_little(name: str) -> None:
    """One of seven uploads is far away, or no number; the others lie within 1 of the origin.

    Three steps of Weiszfeld divide a distance by some thousand, so that a very large lie gets through.
    """
    honest = (0.2 * np.random.default_rng(0).random((6, 4))).tolist()
    far = 1e3 if name == "geometric_median" else 1e150
    for lie in (far, -far):
        assert combine(name, [*honest, [lie] * 4]).norm() < 11
    if name in ("median", "trimmed_mean", "krum", "multi_krum", "bulyan"):
        assert combine(name, [*honest, [math.nan] * 4]).norm() < 1


@pytest.mark.parametrize("name", RULES)
def test_running_statistics_stay_between_those_that_arrived(name: str) -> None:
    w = numbered_model()
    sent = [Message(i, {"model": Params(w.weights + i, w.buffers + i, w.spec)}, 1.0, 0) for i in range(5)]
    kind = SERVER_RULES.get(name)
    new, _ = kind(kind.Hyper()).update({}, w, sent, "model")
    assert new.spec is w.spec
    assert ((new.buffers >= w.buffers) & (new.buffers <= w.buffers + 4)).all()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_a_rule_goes_with_methods_whose_aggregation_is_a_mean(name: str, method: str) -> None:
    federation = toy(method, server={"name": name})
    run(federation, 3)
    assert torch.isfinite(generic(federation)).all()


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="method 'local' does not aggregate by a mean, so server rule 'krum' cannot"):
        toy("local", server={"name": "krum"})
    with pytest.raises(ValueError, match="no client sent 'model'"):
        SERVER_RULES.get("median")(None).combine(None, [], "model")
