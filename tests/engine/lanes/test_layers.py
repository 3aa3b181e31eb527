"""A layer for several networks in one operation computes what the layer of each network computes; so do BatchNorm,
residual and ReLU in one operation."""

import contextlib
import copy
import itertools
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from bench import model_call
from bench.engine.lanes import LaneBatchNorm, LaneBlock, LaneConvolution, norm_relu, sgd, with_lanes
from bench.engine.lanes.common import Geometry
from bench.engine.lanes.convolution import convolve, in_groups
from bench.engine.lanes.norm import masked
from bench.models.factory import build
from bench.models.fourier import FourierConv2d
from bench.models.image_networks import resnet18, resnet18_gn, resnet50
from tests.engine.problems import assert_same, everything, run, toy
from tests.engine.second_device import NAME, SecondDevice
from tests.later import Later

LANES, SAMPLES = 3, 5


def network() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 3, 3, padding=(1, 0), stride=(2, 1)), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten()]
    net = nn.Sequential(*body, nn.Linear(12, 4), nn.BatchNorm1d(4, momentum=0.3, eps=0.1)).double()
    for layer in (net[1], net[5]):
        layer.num_batches_tracked = None
    return net


def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


def everything_of(net: nn.Module, shared: tuple[str, ...], training: bool) -> list[Tensor]:
    """Outputs, updated buffers, gradients and second derivatives; `shared`: what is the same for all lanes."""
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
        # A buffer that all lanes share cannot be updated in place.
        buffers = {name: b + 0 * x.sum() for name, b in buffers.items()}
        out = functional_call(net, weights | buffers, (x,))
        return (out / 50).exp().mean() + out.square().sum(), (out, buffers)

    def of_gradient(*args: Any) -> Tensor:
        gradients, _ = grad(loss, has_aux=True)(*args)
        return sum((g.square().sum() for g in gradients.values()), torch.tensor(0.0))

    found = vmap(grad(loss, has_aux=True), in_dims)(*given.values()), vmap(grad(of_gradient), in_dims)(*given.values())
    return [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]


@pytest.mark.parametrize("shared", [(), ("weights",), ("buffers",)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_lanes_get_what_pytorch_s_own_layers_give_each(training: bool, shared: tuple[str, ...]) -> None:
    net = network()
    mine = with_lanes(copy.deepcopy(net))
    taken = LaneConvolution, LaneBatchNorm, LaneBatchNorm
    assert tuple(type(mine[i]) for i in (0, 1, 5)) == taken  # type: ignore[index]
    assert list(dict(mine.named_parameters())) == list(dict(net.named_parameters()))
    found, expected = (everything_of(one, shared, training) for one in (mine, net))
    assert len(found) == len(expected) > 12
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class Act(nn.BatchNorm2d):
    """A layer that computes something else than its base."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalised samples and their ReLU, as in timm."""
        return super().forward(x).relu()


class Standardised(nn.Conv2d):
    """Another one."""


class Pooled(nn.AdaptiveAvgPool2d):
    """Another one."""


class Transformed(FourierConv2d):
    """Another one, whose base says what it computes as."""


def test_layers_of_another_kind_stay() -> None:
    """BatchNorm without weights or running statistics, convolutions that are not plain, derived layers, and those with
    hooks."""
    kinds = [
        nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3, momentum=None),
        nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(2, 4, 3, dilation=2), nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding_mode="circular"), nn.Conv3d(2, 4, 3), Act(3), Standardised(2, 4, 3), Pooled(1),
        Transformed(2, 4, 3),
    ]  # fmt: skip
    for hooked in (nn.BatchNorm2d(3), nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1)):
        hooked.register_forward_hook(lambda *_: None)
        kinds.append(hooked)
    before = nn.Conv2d(2, 4, 3)
    before.register_forward_pre_hook(lambda *_: None)
    kinds.append(before)
    for layer in kinds:
        assert with_lanes(nn.Sequential(layer))[0] is layer  # type: ignore[index]


def test_a_resnet_s_other_activations_and_blocks_with_hooks_stay() -> None:
    """A fused layer would take a ReLU in their place, or drop the hook."""
    for change in ("stem", "block", "hook"):
        net = torchvision.models.resnet18(num_classes=3).double().eval()
        if change == "hook":
            net.layer1[0].register_forward_hook(lambda layer, given, out: 2 * out)
        else:
            (net if change == "stem" else net.layer1[0]).relu = nn.SiLU()
        x = drawn(2, 3, 32, 32)
        torch.testing.assert_close(with_lanes(copy.deepcopy(net))(x), net(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "model", ["cnn", "spfl_cnn", "comet_cnn", "lenet", "flower_cnn", "vgg11", "resnet18_gn", "resnet50"]
)
def test_cohorts_take_the_convolutions_of_our_own_networks(model: str) -> None:
    """Other networks train one client at a time on a GPU."""
    net = build(model, (3, 32, 32), 10, {}, None)
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert convolutions
    assert not any(map(in_groups, convolutions))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 4, 3, stride=2, padding=1),
        nn.Conv1d(2, 4, 2, padding="valid", bias=False),
        nn.Conv2d(2, 4, 3, padding="valid"),
    ],
    ids=str,
)
def test_signals_and_padding_by_name(layer: nn.Conv1d | nn.Conv2d) -> None:
    layer = copy.deepcopy(layer).double()
    x, weights = drawn(LANES, SAMPLES, 2, *[7] * len(layer.kernel_size)), drawn(LANES, *layer.weight.shape)

    def loss(net: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
        return functional_call(net, {"weight": weight}, (x,)).square().sum()

    found, expected = (
        vmap(grad(lambda x, w, net=net: loss(net, x, w), argnums=(0, 1)))(x, weights)
        for net in (LaneConvolution(layer), layer)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_a_convolution_s_derivatives_are_right_twice_and_lanes_within_lanes() -> None:
    geometry = Geometry((3, 2), (2, 1), (1, 0))
    x, w = drawn(2, 2, 3 * 2, 6, 5).requires_grad_(), drawn(2, 3, 3, 3, 2, 2).requires_grad_()

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return vmap(lambda x, w: convolve(x, w, geometry))(x, w)

    assert torch.autograd.gradcheck(convolved, (x, w))
    assert torch.autograd.gradgradcheck(convolved, (x, w))


def test_in_bfloat16_they_round_once() -> None:
    """As in PyTorch's own convolutions, only the inputs, the weights and the output are rounded."""
    layer, x = nn.Conv2d(16, 8, 3, padding=1), torch.randn(4, 16, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = LaneConvolution(layer)(x), layer(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-2)


def test_batchnorm_of_bfloat16_keeps_that_type_and_statistics_in_float32() -> None:
    """As PyTorch's own BatchNorm under autocast; that one refuses bfloat16 when it is mapped over clients."""
    layer = LaneBatchNorm(nn.BatchNorm2d(3))
    x = torch.randn(LANES, 32, 3, 4, 4)

    def normalised(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        buffers = {name: b + 0 * x.float().sum() for name, b in layer.named_buffers()}
        return functional_call(layer, buffers, (x,)), buffers

    found, moved = vmap(normalised)(x.bfloat16())
    expected, right = vmap(normalised)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=2**-7)
    for name, buffer in moved.items():
        torch.testing.assert_close(buffer, right[name], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", ["fedavg", pytest.param("perfedavg", marks=pytest.mark.long)])
@pytest.mark.parametrize("executor", ["cohort", "sequential"])
def test_only_a_gpu_takes_them(method: str, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per-FedAvg is here because it takes second derivatives."""
    made: list[nn.Module] = []
    monkeypatch.setattr(model_call, "_templates", model_call._Templates())
    monkeypatch.setattr(model_call, "_gpu_form", lambda net: made.append(with_lanes(net)))
    here = toy(method, model="test_norm", executor=executor)
    run(here, 2)
    assert not made
    with SecondDevice():
        there = toy(method, model="test_norm", executor=executor, device=NAME)
        run(there, 2)
        assert_same(everything(there), everything(here))
    assert made


# -- BatchNorm, residual and ReLU in one operation --------------------------------------------------------------------


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
@pytest.mark.parametrize(("kind", "shortcut"), [("BasicBlock", False), ("BasicBlock", True), ("Bottleneck", True)])
def test_a_block_is_torchvision_s_with_its_derivatives(kind: str, shortcut: bool, training: bool) -> None:
    """Second derivatives, too."""
    net = block(getattr(Later("torchvision.models.resnet"), kind), shortcut=shortcut)
    mine = with_lanes(copy.deepcopy(net))
    assert isinstance(mine[0], LaneBlock)  # type: ignore[index]
    assert list(dict(mine.named_parameters())) == list(dict(net.named_parameters()))
    assert list(dict(mine.named_buffers())) == list(dict(net.named_buffers()))
    found, expected = (everything_of(one, (), training) for one in (mine, net))
    assert len(found) == len(expected) > 12
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_all_relus_of_a_resnet_are_taken(kind: str) -> None:
    net = with_lanes({"resnet18": resnet18, "resnet50": resnet50}[kind]((3, 32, 32), 10))
    assert not [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]
    norms = {name: layer.relu for name, layer in net.named_modules() if isinstance(layer, LaneBatchNorm)}
    assert [name for name, relu in norms.items() if not relu] == [name for name in norms if "downsample" in name]


def test_with_groupnorm_the_blocks_stay() -> None:
    layers = [*with_lanes(resnet18_gn((3, 32, 32), 10)).modules()]
    assert not [layer for layer in layers if isinstance(layer, LaneBlock)]
    assert [layer for layer in layers if isinstance(layer, nn.ReLU)]


@pytest.mark.parametrize("shape", [(), (2, 2)])
@pytest.mark.parametrize(("residual", "relu"), [(False, False), (False, True), (True, False), (True, True)])
def test_padding_is_left_out_of_the_operation_and_its_derivatives(
    residual: bool, relu: bool, shape: tuple[int, ...]
) -> None:
    """Outputs, statistics, gradients and second derivatives are those of each lane's real samples alone: of five
    samples, five, four and two are real; the others hold arbitrary numbers."""
    layer = LaneBatchNorm(nn.BatchNorm2d(3, momentum=0.3).double())
    layer.relu = relu
    x, more, slopes = (drawn(LANES, SAMPLES, 3, *shape) - 1 for _ in range(3))
    reals = torch.tensor([5, 4, 2])
    mask = (torch.arange(SAMPLES) < reals[:, None]).double()

    def loss(weights: Any, x: Tensor, more: Tensor, slopes: Tensor, mask: Tensor | None) -> Any:
        buffers = {name: b + 0 * x.sum() for name, b in layer.named_buffers()}
        with masked(layer, mask) if mask is not None else contextlib.nullcontext():
            out = functional_call(layer, weights | buffers, (x, more) if residual else (x,))
        return (out.square() * slopes).sum(), (out, buffers)

    def everything(x: Tensor, more: Tensor, slopes: Tensor, mask: Tensor | None) -> Any:
        """What belongs to samples, and what to the layer."""
        weights, by_hand = dict(layer.named_parameters()), grad(loss, argnums=(0, 1, 2), has_aux=True)

        def size(*args: Any) -> Tensor:
            return sum(g.square().sum() for g in pytree.tree_leaves(by_hand(*args, slopes, mask)[0]))

        first, (out, buffers) = by_hand(weights, x, more, slopes, mask)
        second = grad(size, argnums=(0, 1, 2))(weights, x, more)
        return [out, *first[1:], *second[1:]], [buffers, first[0], second[0]]

    of_samples, of_layer = vmap(everything)(x, more, slopes * mask.view(LANES, SAMPLES, 1, *([1] * len(shape))), mask)
    for lane, real in enumerate(reals.tolist()):
        right, right_of_layer = everything(x[lane, :real], more[lane, :real], slopes[lane, :real], None)
        torch.testing.assert_close([t[lane, :real] for t in of_samples], right, rtol=1e-9, atol=1e-9)
        found_of_layer = pytree.tree_map(lambda t, lane=lane: t[lane], of_layer)
        torch.testing.assert_close(found_of_layer, right_of_layer, rtol=1e-9, atol=1e-9)
        assert not of_samples[1][lane, real:].any()


@pytest.mark.long
def test_the_operations_shapes_are_known_beforehand() -> None:
    """Tensors without numbers get the shapes, types and memory formats that the operations give."""
    images, weight = torch.randn(SAMPLES, 6, 4, 3), torch.rand(5, 2, 3)
    slopes = torch.randn(SAMPLES, 6, 1, 1).expand(-1, -1, 4, 3)  # as a mean over all pixels gives it
    checks, masks = ("test_schema", "test_faketensor"), ([], [(torch.rand(2, SAMPLES) < 0.8).float()])
    kinds = torch.float32, torch.bfloat16
    for residual, mask, relu, kind in itertools.product((False, True), masks, (False, True), kinds):
        x, g = images.to(kind), slopes.to(kind)
        forward = x, [x + 1] if residual else [], mask, *weight[:4], 0.1, 1e-5, relu
        torch.library.opcheck(norm_relu._forward, forward, test_utils=checks)
        backward = g, x, x, mask, *weight[:3], residual, relu, 1e-5
        torch.library.opcheck(norm_relu._backward, backward, test_utils=checks)
    state, gradient = [torch.randn(2, 7), torch.randn(2, 7)], [torch.randn(2, 3, 2).bfloat16(), torch.randn(2, 1)]
    torch.library.opcheck(sgd._sgd, (state, gradient, [], torch.rand(2), 0.9, 0.1, True), test_utils=checks)
