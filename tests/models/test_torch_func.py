"""Models under `torch.func`: stacked clients give what separate modules give, batch statistics included."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from bench.models.factory import build
from bench.models.init import initialise
from bench.models.network import Network
from bench.rng import generator
from tests.models.helpers import filled

LANES, BATCH, CLASSES = 3, 3, 4
Named = dict[str, Tensor]


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A small network with the layers of a ResNet."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(),
    )
    return Network(body, nn.Linear(4, classes))


def stacked(net: nn.Module) -> tuple[Named, Named]:
    """Weights and buffers of three clients, all different, float64."""
    lanes = [initialise(net, generator(lane, "weights"), torch.float64) for lane in range(LANES)]
    params = {path: torch.stack([lane[path] for lane in lanes]) for path, _ in net.named_parameters()}
    buffers = {
        path: torch.stack([lane[path] + 0.1 * i for i, lane in enumerate(lanes)]) for path, _ in net.named_buffers()
    }
    return params, buffers


def batches(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Inputs and labels, one batch per client."""
    x = torch.from_numpy(generator(0, "x").normal(size=(LANES, BATCH, *shape)))
    y = torch.from_numpy(generator(0, "y").integers(0, CLASSES, size=(LANES, BATCH)))
    return x, y


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (5,)),
        ("cnn", (2, 16, 16)),
        ("comet_cnn", (1, 16, 16)),
        ("resnet18", (1, 16, 16)),
        ("mobilenet_v3_small", (1, 16, 16)),
        pytest.param("vgg11", (1, 32, 32), marks=pytest.mark.slow),
        ("theirs", (2, 5, 5)),
    ],
)
@pytest.mark.parametrize("theirs", [normed], indirect=True)
@pytest.mark.usefixtures("theirs")
def test_stacked_gradients_and_buffers_are_those_of_separate_modules(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape, CLASSES).train()
    params, buffers = stacked(net)
    before = {path: value.clone() for path, value in buffers.items()}
    x, y = batches(shape)

    def loss(params: Named, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        moved = {path: value.clone() for path, value in buffers.items()}
        return cross_entropy(functional_call(net, {**params, **moved}, (x,)), y), moved

    gradients, moved = vmap(grad(loss, has_aux=True))(params, buffers, x, y)

    for lane in range(LANES):
        values = {path: value[lane] for path, value in {**params, **buffers}.items()}
        module = filled(build(name, shape, CLASSES), values).train()
        cross_entropy(module(x[lane]), y[lane]).backward()
        for path, p in module.named_parameters():
            torch.testing.assert_close(gradients[path][lane], p.grad, rtol=1e-9, atol=1e-11)
        for path, b in module.named_buffers():
            torch.testing.assert_close(moved[path][lane], b, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(buffers[path], before[path]) for path in buffers)
    assert not any(torch.equal(moved[path], before[path]) for path in buffers)


@pytest.mark.parametrize("theirs", [normed], indirect=True)
@pytest.mark.usefixtures("theirs")
def test_a_batch_that_all_lanes_share_moves_each_lane_s_own_buffers() -> None:
    shape = (2, 5, 5)
    net = build("theirs", shape, CLASSES).train()
    params, buffers = stacked(net)
    x = batches(shape)[0][0]

    def moved(params: Named, buffers: Named) -> Named:
        moved = {path: value.clone() for path, value in buffers.items()}
        functional_call(net, {**params, **moved}, (x,))
        return moved

    together = vmap(moved)(params, buffers)
    for lane in range(LANES):
        alone = moved(*({path: value[lane] for path, value in named.items()} for named in (params, buffers)))
        for path, value in alone.items():
            torch.testing.assert_close(together[path][lane], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 16, 16)), ("theirs", (2, 5, 5))])
@pytest.mark.parametrize("theirs", [normed], indirect=True)
@pytest.mark.usefixtures("theirs")
def test_second_order_gradients_are_those_of_separate_modules(name: str, shape: tuple[int, ...]) -> None:
    """The gradient of a squared gradient norm, through pools and batch statistics."""
    net = build(name, shape, CLASSES).train()
    params, buffers = stacked(net)
    x, y = batches(shape)

    def loss(params: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
        moved = {path: value.clone() for path, value in buffers.items()}
        return cross_entropy(functional_call(net, {**params, **moved}, (x,)), y)

    def steepness(params: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([g.square().sum() for g in grad(loss)(params, buffers, x, y).values()]).sum()

    together = vmap(grad(steepness))(params, buffers, x, y)

    for lane in range(LANES):
        values = {path: value[lane] for path, value in {**params, **buffers}.items()}
        module = filled(build(name, shape, CLASSES), values).train()
        weights = dict(module.named_parameters())
        first = torch.autograd.grad(cross_entropy(module(x[lane]), y[lane]), list(weights.values()), create_graph=True)
        second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), list(weights.values()))
        for path, expected in zip(weights, second, strict=True):
            torch.testing.assert_close(together[path][lane], expected, rtol=1e-8, atol=1e-10)
