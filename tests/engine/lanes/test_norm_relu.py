"""BatchNorm, residual and ReLU in one operation compute what they compute one after another."""

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torchvision.models.resnet import BasicBlock, Bottleneck

from bench.engine.lanes import LaneBatchNorm, LaneBlock, norm_relu, sgd, with_lanes
from bench.engine.lanes.norm import masked
from bench.models.resnet import resnet18, resnet18_gn, resnet50
from tests.engine.lanes.test_layers import LANES, SAMPLES, drawn, everything_of


def block(kind: Any, *, shortcut: bool) -> nn.Module:
    """A block of two channels in float64, with a projection as its shortcut or without one."""
    torch.manual_seed(0)
    width = 2 if shortcut else 2 // kind.expansion
    wide = width * kind.expansion
    down = nn.Sequential(nn.Conv2d(2, wide, 1, bias=False), nn.BatchNorm2d(wide)) if shortcut else None
    net = nn.Sequential(kind(2, width, downsample=down)).double()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = None
    return net


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("kind", "shortcut"), [(BasicBlock, False), (BasicBlock, True), (Bottleneck, True)])
def test_a_block_is_torchvision_s_with_its_derivatives(kind: Any, shortcut: bool, training: bool) -> None:
    """Second derivatives, too."""
    net = block(kind, shortcut=shortcut)
    mine = with_lanes(copy.deepcopy(net), convolutions=True)
    assert isinstance(mine[0], LaneBlock)  # type: ignore[index]
    assert list(dict(mine.named_parameters())) == list(dict(net.named_parameters()))
    assert list(dict(mine.named_buffers())) == list(dict(net.named_buffers()))
    found, expected = (everything_of(one, (), training) for one in (mine, net))
    assert len(found) == len(expected) > 12
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_all_relus_of_a_resnet_are_taken(kind: str) -> None:
    net = with_lanes({"resnet18": resnet18, "resnet50": resnet50}[kind]((3, 32, 32), 10), convolutions=True)
    assert not [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]
    norms = {name: layer.relu for name, layer in net.named_modules() if isinstance(layer, LaneBatchNorm)}
    assert [name for name, relu in norms.items() if not relu] == [name for name in norms if "downsample" in name]


def test_without_lane_kernels_or_with_groupnorm_the_blocks_stay() -> None:
    plain = with_lanes(resnet18((3, 32, 32), 10), convolutions=False)
    groups = with_lanes(resnet18_gn((3, 32, 32), 10), convolutions=True)
    for net in (plain, groups):
        assert not [layer for layer in net.modules() if isinstance(layer, LaneBlock)]
        assert [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]


@pytest.mark.parametrize("residual", [False, True])
def test_padding_is_left_out_by_the_layer_that_takes_the_relu(residual: bool) -> None:
    layer = LaneBatchNorm(nn.BatchNorm2d(3).double())
    layer.relu = True
    x, more = drawn(LANES, SAMPLES, 3, 2, 2) - 1, drawn(LANES, SAMPLES, 3, 2, 2) - 1

    def normalised(x: Tensor, more: Tensor, mask: Tensor | None) -> Any:
        buffers = {name: b + 0 * x.sum() for name, b in layer.named_buffers()}
        with masked(layer, mask) if mask is not None else contextlib.nullcontext():
            return functional_call(layer, buffers, (x, more) if residual else (x,)), buffers

    found, moved = vmap(normalised)(x, more, (torch.arange(SAMPLES) < 3).double().expand(LANES, -1))
    right, right_moved = vmap(lambda x, more: normalised(x, more, None))(x[:, :3], more[:, :3])
    torch.testing.assert_close(found[:, :3], right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved, right_moved, rtol=1e-9, atol=1e-9)
    assert 0 < (right > 0).sum() < right.numel()


def test_the_operations_shapes_are_known_beforehand() -> None:
    """Tensors without numbers get the shapes, types and memory formats that the operations give."""
    x, weight = torch.randn(SAMPLES, 6, 4, 3), torch.rand(5, 6)
    g = torch.randn(SAMPLES, 6, 1, 1).expand(-1, -1, 4, 3)  # as a mean over all pixels gives it
    checks = "test_schema", "test_faketensor"
    for more in ([], [x + 1]):
        torch.library.opcheck(norm_relu._forward, (x, more, *weight[:4], 0.1, 1e-5), test_utils=checks)
        torch.library.opcheck(norm_relu._backward, (g, x, x, *weight[:3], bool(more)), test_utils=checks)
    state, gradient = [torch.randn(2, 7), torch.randn(2, 7)], [torch.randn(2, 3, 2).bfloat16(), torch.randn(2, 1)]
    torch.library.opcheck(sgd._sgd, (state, gradient, torch.rand(2), 0.9, 0.1, True), test_utils=checks)
