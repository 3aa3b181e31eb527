"""What a recorded step leaves out, and that it computes the same bytes."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bench.recording import record, tidy


def calls(function: torch.fx.GraphModule) -> int:
    return sum(node.op in ("call_function", "call_method") for node in function.graph.nodes)


def test_views_constants_and_repetitions_are_left_out() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        same = x.view(4, 3).transpose(0, 1).transpose(0, 1).expand(4, 3)
        zero = torch.zeros_like(y) + 1
        return [same.exp() + x.exp(), torch.where(y > 0, y, zero), x.transpose(0, 1).contiguous().view(12)]

    x, y = torch.randn(4, 3), torch.randn(5)
    recorded = make_fx(function)(x, y)
    tidied = tidy(recorded)
    assert calls(tidied) == 7  # exp, +, >, where, and the last one's transpose, copy and view
    other = torch.randn(4, 3), torch.randn(5)
    for found, expected in zip(tidied(*other), function(*other), strict=True):
        assert torch.equal(found, expected)


def test_what_writes_or_draws_stays_as_it_is() -> None:
    def writes(x: Tensor) -> list[Tensor]:
        first = torch.zeros_like(x)
        second = torch.zeros_like(x)
        first.add_(x)
        return [first, second]

    def draws(x: Tensor) -> list[Tensor]:
        return [torch.rand_like(x), torch.rand_like(x)]

    for function in (writes, draws):
        recorded = make_fx(function)(torch.randn(3))
        assert calls(tidy(recorded)) == calls(make_fx(function)(torch.randn(3)))
    first, second = tidy(make_fx(writes)(torch.randn(3)))(torch.ones(3))
    assert torch.equal(first, torch.ones(3))
    assert torch.equal(second, torch.zeros(3))


def test_writing_into_a_tensor_of_its_own_becomes_an_operation_like_others() -> None:
    def function(tensors: list[Tensor]) -> list[Tensor]:
        half = torch.full_like(tensors[0], 0.5)
        half[:, 0] = 1.0
        return [half * tensors[0]]

    recorded = record(function, [torch.randn(2, 3)])
    assert calls(recorded) == 1  # what was written is a constant
    for _ in range(2):
        assert torch.equal(recorded(torch.full((2, 3), 4.0))[0], torch.tensor([[4.0, 2.0, 2.0]] * 2))
