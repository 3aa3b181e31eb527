"""The convolution by Fourier transforms against the ordinary one: values, gradients, and where it is not taken."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import conv2d

from bench.models.fourier import FourierConv2d
from bench.rng import generator

available = pytest.mark.skipif(
    not torch.backends.nnpack.is_available(),  # type: ignore[no-untyped-call]
    reason="PyTorch has no NNPACK here",
)


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which it pays, whichever runs the tests."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


def layer_and_maps(side: int, dtype: torch.dtype = torch.float32) -> tuple[FourierConv2d, Tensor]:
    rng = generator("tests", "fourier", side)
    layer = FourierConv2d(6, 9, 5).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    return layer, torch.from_numpy(rng.normal(size=(7, 6, side, side))).to(dtype)


def with_gradients(y: Tensor, x: Tensor, layer: FourierConv2d) -> list[Tensor]:
    """The result, and the gradients of what needs one: of the input, of the weights and biases."""
    weighted = (y * (2 + torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos())).sum()
    return [y.detach(), *torch.autograd.grad(weighted, [t for t in (x, *layer.parameters()) if t.requires_grad])]


def taken(y: Tensor) -> bool:
    """Whether the layer's own function is behind a result, perhaps in another layout."""
    assert y.grad_fn is not None
    return any("_Convolve" in type(node).__name__ for node in (y.grad_fn, y.grad_fn.next_functions[0][0]))


@available
@pytest.mark.parametrize("needing", ["all", "weights", "inputs"])  # weights alone in a network's first layer
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("side", [6, 12, 13, 16])
def test_values_gradients_and_layout_are_the_ordinary_convolution_s(
    side: int, layout: torch.memory_format, needing: str
) -> None:
    """13 and 16 are too large for the gradient of the input, which is padded by 8."""
    layer, x = layer_and_maps(side)
    layer.requires_grad_(needing != "inputs")
    x = x.contiguous(memory_format=layout).requires_grad_(needing != "weights")
    found, right = layer(x), conv2d(x, layer.weight, layer.bias)
    assert taken(found)
    assert found.stride() == right.stride()
    for one, other in zip(with_gradients(found, x, layer), with_gradients(right, x, layer), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6 * float(other.abs().max()))


@available
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_maps_of_one_channel_keep_their_layout(layout: torch.memory_format) -> None:
    """They are contiguous in both, and a network that flattens with `view` takes one of them only."""
    layer, x = FourierConv2d(1, 3, 5), torch.ones(2, 1, 8, 8).clone(memory_format=layout)
    assert layer(x).stride() == conv2d(x, layer.weight, layer.bias).stride()


@available
def test_second_derivatives_are_the_ordinary_convolution_s() -> None:
    """A loss may take a gradient inside."""
    layer, x = layer_and_maps(12)

    def curvature(y: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(y.pow(3).sum(), [layer.weight], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), [layer.weight])
        return second

    found, right = curvature(layer(x)), curvature(conv2d(x, layer.weight, layer.bias))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-4 * float(right.abs().max()))


@pytest.mark.parametrize("why", ["large", "float64", "empty", "autocast", "switched off", "AVX512"])
def test_anywhere_else_it_is_the_ordinary_convolution(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "AVX512":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: why)
    layer, x = layer_and_maps(17 if why == "large" else 12, torch.float64 if why == "float64" else torch.float32)
    x = x[:0] if why == "empty" else x
    switch = torch.backends.nnpack.flags(enabled=why != "switched off")
    with switch, torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"):
        found = layer(x)
        assert not taken(found)
        assert torch.equal(found, conv2d(x, layer.weight, layer.bias))


def test_under_a_transform_it_is_the_ordinary_convolution() -> None:
    layer, x = layer_and_maps(12)
    weights = torch.stack([layer.weight.detach(), 2 * layer.weight.detach()])

    def loss(convolve: object) -> Tensor:
        def of(weight: Tensor) -> Tensor:
            named = {"weight": weight, "bias": layer.bias.detach()}
            y = torch.func.functional_call(layer, named, (x,)) if convolve is layer else conv2d(x, **named)
            return y.square().sum()

        return vmap(grad(of))(weights)

    assert torch.equal(loss(layer), loss(conv2d))
