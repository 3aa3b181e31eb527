"""A step of SGD as one operation is the optimizer's step."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from bench import tensors
from bench.engine.lanes import sgd
from bench.engine.lanes.sgd import plain_sgd, update
from bench.optim import SGD, Adam, OptimizerState

LANES, D = 4, 37
OPTIMIZERS = [SGD(momentum=m, weight_decay=w, nesterov=n, clip=c)
              for m, w, n, c in itertools.product((None, 0.9), (None, 0.1), (False, True), (None, 1.0))]  # fmt: skip


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: True)


def drawn(optimizer: SGD, *, seed: int = 0) -> tuple[Tensor, Tensor, OptimizerState, Tensor]:
    """Weights, gradients, states and rates in float64; one lane is idle."""
    w, g, velocity = torch.randn(3, LANES, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    lr = torch.arange(LANES, dtype=torch.float64)
    return w, g, {"velocity": velocity} if optimizer.momentum else {}, lr


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_it_is_the_optimizer_s_step_in_lanes_and_alone(optimizer: SGD) -> None:
    given = drawn(optimizer)
    w, state = vmap(lambda *one: update(optimizer, *one))(*given)
    right, right_state = vmap(optimizer.update)(*given)
    torch.testing.assert_close((w, state), (right, right_state), rtol=1e-12, atol=1e-12)
    assert torch.equal(w[0], given[0][0])  # the idle lane
    assert not torch.equal(w[1], given[0][1])
    for lane in range(LANES):
        one = [given[0][lane], given[1][lane], {name: t[lane] for name, t in given[2].items()}, given[3][lane]]
        alone, moved = update(optimizer, *one)  # type: ignore[arg-type]
        assert torch.equal(alone, w[lane])
        assert all(torch.equal(moved[name], state[name][lane]) for name in state)


def test_lanes_may_share_weights_or_gradients_and_be_in_any_dimension() -> None:
    w, g, state, lr = drawn(SGD(momentum=0.9))

    def step(*one: Any) -> Any:
        return update(SGD(momentum=0.9), *one)

    right = vmap(step, in_dims=(0, 0, 0, None))(w[:1].expand(LANES, D), g, state, lr[2])
    found = vmap(step, in_dims=(None, 1, 0, None))(w[0], g.T, state, lr[2])
    assert torch.equal(found[0], right[0])
    assert torch.equal(found[1]["velocity"], right[1]["velocity"])


@pytest.mark.parametrize(
    ("optimizer", "gpu", "shape", "takes"),
    [
        (SGD(momentum=0.9), True, (D,), True),
        (SGD(momentum=0.9), False, (D,), False),
        (SGD(momentum=0.9), True, (), False),  # such as the scalar of APFL
        (Adam(), True, (D,), False),
    ],
)
def test_only_sgd_of_a_vector_takes_it_and_only_on_a_gpu(
    optimizer: Any, gpu: bool, shape: tuple[int, ...], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[SGD] = []
    monkeypatch.setattr(tensors, "on_gpu", lambda tensor: gpu)
    monkeypatch.setattr(sgd, "sgd_step", lambda state, *_, **rest: taken.append(optimizer) or state)
    w = torch.ones(shape)
    update(optimizer, w, w, optimizer.init(w), torch.tensor(0.1))
    assert bool(taken) == takes


def test_pieces_in_any_layout_and_in_16_bits_are_the_vector() -> None:
    generator = torch.Generator().manual_seed(0)
    pieces = [torch.randn(LANES, 2, 3, 3, 5, generator=generator).permute(0, 1, 4, 2, 3).bfloat16(),
              torch.randn(LANES, 7, generator=generator)]  # fmt: skip
    vector = torch.cat([piece.float().flatten(1) for piece in pieces], 1)
    state, lr = list(torch.randn(2, LANES, vector.shape[1], generator=generator)), torch.rand(LANES)
    found, right = (plain_sgd(state, one, [], lr, 0.9, 0.1, False) for one in (pieces, [vector]))
    assert all(map(torch.equal, found, right))
