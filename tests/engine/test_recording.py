"""What a recorded step leaves out, and that it computes the same bytes."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bench.engine.backends.recording import record, tidy, update_in_place


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
    assert calls(tidied) == 7  # exp, +, >, where; transpose, copy and view of the last one
    other = torch.randn(4, 3), torch.randn(5)
    for found, expected in zip(tidied(*other), function(*other), strict=True):
        assert torch.equal(found, expected)


def test_a_recording_knows_which_results_share_memory_with_something() -> None:
    """Such as arguments, views of them, constants, and each other; nothing may be written into these."""

    def function(tensors: list[Tensor]) -> list[Tensor]:
        x, y = tensors
        summed, parts = x + y, (x * y).split(2)
        values, places = (x - y).sort()
        return [
            x,
            y.view(2, 2),
            torch.zeros(4),
            summed,
            parts[0],
            parts[1],
            summed.view(2, 2),
            x.exp().view(2, 2),
            values,
            places,
        ]

    x, y = torch.randn(4), torch.randn(4)
    recorded = record(function, [x, y])
    results = recorded(x, y)
    places = [t.untyped_storage().data_ptr() for t in results]
    taken = {t.untyped_storage().data_ptr() for t in (x, y, *recorded.buffers())}
    assert recorded.owned == [place not in taken and places.count(place) == 1 for place in places]
    assert recorded.owned == [False] * 7 + [True] * 3


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
    assert calls(recorded) == 1  # the tensor that was written to is a constant
    for _ in range(2):
        assert torch.equal(recorded(torch.full((2, 3), 4.0))[0], torch.tensor([[4.0, 2.0, 2.0]] * 2))


def pieces_of(tensors: list[Tensor]) -> list[Tensor]:
    """A step on 80,000 weights in two pieces. The gradient of the second needs the old values of both, also through
    a view."""
    weights, rate = tensors
    a, b = torch.split(weights, [30_000, 50_000])
    of_a = 2 * a + b.sum()
    of_b = 3 * b + a.view(2, -1).t().sum() + of_a.sum()
    return [torch.addcmul(weights, rate, torch.cat([of_a, of_b]), value=-1), of_b.sum()]


def test_weights_change_where_they_lie_when_nothing_needs_the_old_ones_any_more() -> None:
    weights, rate = torch.randn(80_000, dtype=torch.float64), torch.tensor(0.01, dtype=torch.float64)
    expected = pieces_of([weights, rate])
    recorded = update_in_place(record(pieces_of, [weights, rate]))
    assert not any("cat" in str(node.target) for node in recorded.graph.nodes)
    mine = weights.clone()
    found = recorded(mine, rate)
    assert found[0].data_ptr() == mine.data_ptr()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_weights_that_are_used_whole_or_elsewhere_stay_as_they_are() -> None:
    def whole(tensors: list[Tensor]) -> list[Tensor]:
        new, total = pieces_of(tensors)
        return [new, total + tensors[0].norm()]

    def returned(tensors: list[Tensor]) -> list[Tensor]:
        return [*pieces_of(tensors), torch.split(tensors[0], [30_000, 50_000])[0].view(2, -1)]

    def twice(tensors: list[Tensor]) -> list[Tensor]:
        new, total = pieces_of(tensors)
        return [new, new, total]

    def other_pieces(tensors: list[Tensor]) -> list[Tensor]:
        a, b = torch.split(tensors[0], [50_000, 30_000])
        return [torch.addcmul(tensors[0], tensors[1], torch.cat([2 * b, 3 * a]), value=-1)]

    weights, rate = torch.randn(80_000, dtype=torch.float64), torch.tensor(0.01, dtype=torch.float64)
    for function in (whole, returned, twice, other_pieces):
        before = weights.clone()
        found = update_in_place(record(function, [weights, rate]))(before, rate)
        assert torch.equal(before, weights)
        assert all(torch.equal(one, other) for one, other in zip(found, function([weights, rate]), strict=True))
