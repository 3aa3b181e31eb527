"""Models under `torch.func`: stacked clients give what separate modules give, batch statistics included."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from bench.data import TokenShape
from bench.models.factory import build
from bench.models.init import initialise
from bench.rng import generator
from tests.engine import problems  # noqa: F401 (registers the model `test_norm`)
from tests.models.helpers import filled, inputs

LANES, BATCH, CLASSES = 3, 3, 4
TEXT, SMALL = TokenShape(9, 7), {"hidden": 5, "embedding": 3}
Named = dict[str, Tensor]
QUICK: list[tuple[str, tuple[int, ...], dict[str, int]]] = [
    ("mlp", (5,), {}),
    ("test_norm", (5,), {}),
    ("char_lstm", TEXT, SMALL),
    ("gru", TEXT, {**SMALL, "layers": 2}),
    ("fasttext", TEXT, {"embedding": 4}),
    ("pfllib_fasttext", TEXT, {"embedding": 4, "hidden": 3}),
]
LONG: list[tuple[str, tuple[int, ...], dict[str, int]]] = [  # further networks are in tests/engine/test_agreement.py
    ("textcnn", TEXT, {"embedding": 4, "filters": 3}),
    ("har_cnn", (2, 20), {"filters": 3, "hidden": 4}),
    ("cnn", (2, 16, 16), {}),
    ("comet_cnn", (1, 16, 16), {}),
    ("resnet18", (1, 16, 16), {}),
]
CASES = [
    *((*case, torch.float64) for case in QUICK),
    *((*case, torch.float32) for case in QUICK if case[0] in ("char_lstm", "gru")),  # oneDNN computes the first
    *(pytest.param(*case, torch.float64, marks=pytest.mark.long) for case in LONG),
    pytest.param("vgg11", (1, 32, 32), {}, torch.float64, marks=pytest.mark.slow),
]


def stacked(net: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[Named, Named]:
    """Weights and buffers of three clients, all different."""
    lanes = [initialise(net, generator(lane, "weights"), dtype) for lane in range(LANES)]
    params = {path: torch.stack([lane[path] for lane in lanes]) for path, _ in net.named_parameters()}
    buffers = {
        path: torch.stack([lane[path] + 0.1 * i for i, lane in enumerate(lanes)]) for path, _ in net.named_buffers()
    }
    return params, buffers


def batches(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and labels, one batch per client."""
    x = inputs(shape, LANES, BATCH)
    y = torch.from_numpy(generator(0, "y").integers(0, CLASSES, size=(LANES, BATCH)))
    return x.to(dtype) if x.is_floating_point() else x, y


@pytest.mark.parametrize(("name", "shape", "options", "dtype"), CASES)
def test_stacked_gradients_and_buffers_are_those_of_separate_modules(
    name: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    """Recurrent layers are torch's own in the separate modules, and written out where they are mapped."""
    net = build(name, shape, CLASSES, options).train()
    params, buffers = stacked(net, dtype)
    before = {path: value.clone() for path, value in buffers.items()}
    x, y = batches(shape, dtype)

    def loss(params: Named, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        moved = {path: value.clone() for path, value in buffers.items()}
        return cross_entropy(functional_call(net, {**params, **moved}, (x,)), y), moved

    gradients, moved = vmap(grad(loss, has_aux=True))(params, buffers, x, y)

    rtol, atol = (1e-9, 1e-11) if dtype == torch.float64 else (1e-4, 1e-6)
    for lane in range(LANES):
        values = {path: value[lane] for path, value in {**params, **buffers}.items()}
        module = filled(build(name, shape, CLASSES, options), values).train()
        cross_entropy(module(x[lane]), y[lane]).backward()
        for path, p in module.named_parameters():
            torch.testing.assert_close(gradients[path][lane], p.grad, rtol=rtol, atol=atol)
        for path, b in module.named_buffers():
            torch.testing.assert_close(moved[path][lane], b, rtol=rtol, atol=atol)
    assert all(torch.equal(buffers[path], before[path]) for path in buffers)
    assert not any(torch.equal(moved[path], before[path]) for path in buffers)


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 16, 16)), ("test_norm", (5,))])
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
