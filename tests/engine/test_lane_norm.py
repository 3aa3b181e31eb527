"""BatchNorm of several networks in one pass is BatchNorm of each."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from bench import forward
from bench.lane_norm import LaneBatchNorm, with_lane_norm
from tests.engine.problems import assert_same, everything, run, toy
from tests.engine.second_device import NAME, SecondDevice

LANES, SAMPLES = 3, 5


def network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten()]
    net = nn.Sequential(*body, nn.Linear(12, 4), nn.BatchNorm1d(4, momentum=0.3, eps=0.1)).double()
    for layer in (net[1], net[5]):
        layer.num_batches_tracked = None
    return net


def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


def everything_of(net: nn.Module, shared: tuple[str, ...], training: bool) -> list[Tensor]:
    """Outputs, moved buffers, gradients and second derivatives; `shared`: what all lanes have in common."""
    torch.manual_seed(1)
    net.train(training)
    given = {
        "weights": {name: drawn(LANES, *p.shape) for name, p in net.named_parameters()},
        "buffers": {name: drawn(LANES, *b.shape) for name, b in net.named_buffers()},
        "x": drawn(LANES, SAMPLES, 2, 4, 4),
    }
    given |= {name: pytree.tree_map(lambda t: t[0], given[name]) for name in shared}
    in_dims = tuple(None if name in shared else 0 for name in given)

    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
        # A buffer that all lanes share cannot move in place.
        buffers = {name: b + 0 * x.sum() for name, b in buffers.items()}
        out = functional_call(net, weights | buffers, (x,))
        return out.exp().mean() + out.square().sum(), (out, buffers)

    def of_gradient(*args: Any) -> Tensor:
        gradients, _ = grad(loss, has_aux=True)(*args)
        return sum((g.square().sum() for g in gradients.values()), torch.tensor(0.0))

    found = vmap(grad(loss, has_aux=True), in_dims)(*given.values()), vmap(grad(of_gradient), in_dims)(*given.values())
    return [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]


@pytest.mark.parametrize("shared", [(), ("weights",), ("buffers",)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_lanes_get_what_pytorch_s_own_layers_give_each(training: bool, shared: tuple[str, ...]) -> None:
    net = network()
    mine = with_lane_norm(copy.deepcopy(net))
    assert [type(layer) for layer in (mine[1], mine[5])] == [LaneBatchNorm] * 2  # type: ignore[index]
    assert list(dict(mine.named_parameters())) == list(dict(net.named_parameters()))
    found, expected = (everything_of(one, shared, training) for one in (mine, net))
    assert len(found) == len(expected) > 12
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_layers_without_weights_or_running_statistics_stay() -> None:
    net = with_lane_norm(nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False)))
    assert [type(layer) for layer in net.children()] == [nn.BatchNorm1d] * 2


@pytest.mark.parametrize("method", ["fedavg", "perfedavg"])
@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_only_a_gpu_takes_them(method: str, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per-FedAvg takes second derivatives."""
    made: list[nn.Module] = []
    monkeypatch.setattr(forward, "_templates", forward._Templates())
    monkeypatch.setattr(forward, "with_lane_norm", lambda net: made.append(with_lane_norm(net)))
    here = toy(method, model="test_norm", executor=executor)
    run(here, 2)
    assert not made
    with SecondDevice():
        there = toy(method, model="test_norm", executor=executor, device=NAME)
        run(there, 2)
        assert_same(everything(there), everything(here))
    assert made
