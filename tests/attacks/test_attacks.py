"""Attacks against numbers worked out by hand, and what holds for all updates."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.attacks.attack import Attack, checked
from bench.attacks.colluding import largest_z
from bench.data import Dataset
from bench.errors import UserError
from bench.plugin import ATTACKS
from bench.rng import generator
from tests.attacks.problems import images

ROWS = st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=2, max_size=6)


def make(name: str, **settings: Any) -> Attack:
    kind = ATTACKS.get(name)
    attack: Attack = kind(kind.Hyper(**settings))
    return attack


def forge(name: str, malicious: Any, benign: Any = (), **settings: Any) -> Tensor:
    own = torch.tensor(malicious, dtype=torch.float64)
    others = torch.tensor(benign, dtype=torch.float64).reshape(-1, own.shape[1])
    return make(name, **settings).forge(own, others, generator("a test"))


def test_labels_are_mirrored() -> None:
    data = images()
    x, y = make("label_flip").poison(data.x, data.y, data, generator("a test"))
    assert x is data.x
    assert y.tolist() == [2, 1, 0, 2, 1, 0, 2, 1]


def test_the_square_of_the_backdoor() -> None:
    """A quarter of eight samples have it: four pixels each, as bright as the brightest of all."""
    data = images()
    before = data.x.copy(), data.y.copy()
    attack = make("backdoor", target=1, poisoned=0.25)
    x, y = attack.poison(data.x, data.y, data, generator("a test"))
    assert (data.x == before[0]).all()
    assert (data.y == before[1]).all()
    stamped = np.flatnonzero((x != data.x).any((1, 2, 3)))
    assert len(stamped) <= 2, "the last sample is as bright there by itself"
    for i in stamped:
        assert (x[i, 0, 1:, 1:] == data.x.max()).all()
        assert (x[i, 0, 0] == data.x[i, 0, 0]).all()
        assert (x[i, 0, :, 0] == data.x[i, 0, :, 0]).all()
        assert y[i] == 1
    assert (y[np.setdiff1d(np.arange(8), stamped)] == data.y[np.setdiff1d(np.arange(8), stamped)]).sum() >= 5


POINTS = Dataset("points", np.zeros((2, 4), np.float32), np.zeros(2, np.int64), 2, 2, (0.0,) * 4, (1.0,) * 4, "")


@pytest.mark.parametrize(
    ("settings", "data", "problem"),
    [
        ({"target": 3}, images(), "target = 3 is no class of 'images', which are 0 to 2"),
        ({"size": 4}, images(), "size = 4 is larger"),
        ({}, POINTS, "its square needs images, and the samples of 'points' have shape"),
    ],
)
def test_a_backdoor_that_does_not_fit_is_refused(settings: dict[str, int], data: Dataset, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        make("backdoor", **settings).check(data)


def test_what_an_attack_makes_of_samples_is_checked() -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    assert checked("mine", x, y, (x, y), 2) == (x, y)
    for poisoned, problem in (((x[:1], y), "returns inputs float32"), ((x, y + 2), "labels outside 0 .. 1")):
        with pytest.raises(UserError, match=f"attack 'mine' .*{problem}|attack 'mine' {problem}"):
            checked("mine", x, y, poisoned, 2)


def test_each_lie_of_a_client_by_itself() -> None:
    assert forge("sign_flip", [[1, -2]]).tolist() == [[-1, 2]]
    assert forge("sign_flip", [[1, -2]], factor=4.0).tolist() == [[-4, 8]]
    assert forge("scale", [[1, -2]], factor=3.0).tolist() == [[3, -6]]
    assert forge("backdoor", [[1, -2]], boost=3.0).tolist() == [[3, -6]]


def test_noise_has_its_standard_deviation_and_nothing_of_the_update() -> None:
    lies = forge("noise", np.full((3, 10_000), 1e6), std=0.5)
    assert lies.std(1).tolist() == pytest.approx([0.5] * 3, rel=0.05)
    assert lies.mean(1).tolist() == pytest.approx([0] * 3, abs=0.03)
    assert not torch.equal(lies[0], lies[1])
    assert forge("noise", np.zeros((1, 2))).dtype == torch.float64


def test_a_little_is_enough_by_hand() -> None:
    """Own updates (0, 10) and (2, 10): mean (1, 10), standard deviations (1, 0); what others send is not read."""
    assert forge("alie", [[0, 10], [2, 10]], [[99, 99]], z=1.5).tolist() == [[2.5, 10]] * 2
    z = largest_z(5, 2)
    assert forge("alie", [[0, 10], [2, 10]], [[0, 0]] * 3).tolist() == [[1 + z, 10]] * 2
    assert forge("alie", [[3, 4]], [[0, 0]]).tolist() == [[3, 4]], "one client knows no standard deviation"


def test_the_largest_z_by_hand() -> None:
    """50 clients, 24 malicious: s = 26 - 24 = 2 of 26 benign ones, and Phi(1.426) = 24 / 26."""
    assert largest_z(50, 24) == pytest.approx(1.426, abs=5e-4)
    assert largest_z(10, 6) == 0, "a majority needs no supporters"
    assert largest_z(2, 1) == 0


def test_the_inner_product_is_negative_by_hand() -> None:
    assert forge("ipm", [[7, 7], [8, 8]], [[1, 2], [3, 6]], epsilon=0.5).tolist() == [[-1, -2]] * 2
    assert forge("ipm", [[2, 4]], epsilon=0.5).tolist() == [[-1, -2]], "without a benign client"


def test_min_max_by_hand() -> None:
    """Benign 0 and 2 lie 2 apart, mean 1, direction down: -1 is 1 from 0 and 3 from 2; 0 is the furthest that is in."""
    assert forge("min_max", [[5.0]], [[0.0], [2.0]]).tolist() == [[0]]
    assert forge("min_max", [[5.0]], [[3.0]]).tolist() == [[3]], "there is no room"


@given(ROWS, st.sampled_from(["std", "unit", "sign"]))
def test_min_max_goes_as_far_as_it_can(benign: list[list[float]], direction: str) -> None:
    """The paper's condition holds, and a step further along the direction it does not; as its search would find."""
    rows = torch.tensor(benign, dtype=torch.float64)
    mean = rows.mean(0)
    lie = forge("min_max", [[0.0] * 3], benign, direction=direction)[0]
    largest = max(float((a - b).norm()) for a in rows for b in rows)
    assert max(float((lie - row).norm()) for row in rows) <= largest * (1 + 1e-6) + 1e-9
    if (lie - mean).norm() > 1e-3:
        further = mean + (lie - mean) * 1.01
        assert max(float((further - row).norm()) for row in rows) > largest


@pytest.mark.parametrize("name", ["sign_flip", "scale", "noise", "alie", "min_max", "ipm"])
def test_lies_keep_type_and_shape(name: str) -> None:
    own, others = torch.ones(2, 3), torch.zeros(4, 3)
    lies = make(name).forge(own, others, generator("a test"))
    assert (lies.shape, lies.dtype) == (own.shape, own.dtype)
    assert torch.equal(own, torch.ones(2, 3))
    assert torch.equal(others, torch.zeros(4, 3))
