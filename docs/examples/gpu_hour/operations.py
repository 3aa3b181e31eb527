"""Single operations: products, copies, convolutions with weights of their own in every lane, BatchNorm, spectra."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from measure import Found, Rows, kernels_of, milliseconds
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from bench import dft, tensors
from bench.engine.device import make_deterministic
from bench.engine.lanes.common import Geometry
from bench.engine.lanes.convolution import KERNELS, convolve
from bench.engine.lanes.norm import LaneBatchNorm, masked
from bench.speed.measure import ceiling
from methods.spectrum import SpectralOptions, divergence

# ResNet-18 on 32 x 32: channels in and out, kernel, stride, side, how often.
LAYERS = (
    (3, 64, 3, 1, 32, 1),
    (64, 64, 3, 1, 32, 4),
    (64, 128, 3, 2, 32, 1),
    (128, 128, 3, 1, 16, 3),
    (128, 256, 3, 2, 16, 1),
    (256, 256, 3, 1, 8, 3),
    (256, 512, 3, 2, 8, 1),
    (512, 512, 3, 1, 4, 3),
)
RESNET18 = 11_173_962  # its weights for ten classes: what SCD's spectrum is of
BATCH = 10
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}


def ceilings(device: str, tiny: bool) -> Rows:
    """TFLOP/s of a large matrix product in each precision, GB/s of a copy within the device and from the host."""
    precisions = ("fp32",) if tiny else PRECISIONS  # processors without bf16 take more than a minute for one product
    size = 1 << (20 if tiny else 30)

    def product(precision: str) -> Found:
        return {"tflops": ceiling(device, precision, 1 if tiny else 10) / 1e12}

    def copy(*, from_host: bool) -> Found:
        source = torch.zeros(size, dtype=torch.uint8, device="cpu" if from_host else device)
        target = torch.zeros(size, dtype=torch.uint8, device=device)
        if from_host and device == "cuda":
            source = source.pin_memory()
        moved = size if from_host else 2 * size  # within the device it is read there, too
        return {"gb_per_s": moved / milliseconds(lambda: target.copy_(source), device, 5) / 1e6}

    return {
        **{f"product, {one}": functools.partial(product, one) for one in precisions},
        "copy on the device": functools.partial(copy, from_host=False),
        "copy from the host": functools.partial(copy, from_host=True),
    }


def one_by_one(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """A convolution per lane."""
    return torch.stack([functional.conv2d(a, b, stride=stride, padding=1) for a, b in zip(x, w, strict=True)])


def in_lanes(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """The operation that a cell has on a GPU, from images to outputs `[lanes, batch, channels, side, side]`."""
    flat = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    geometry = Geometry((3, 3), (stride, stride), (1, 1))
    out = convolve(flat, w.permute(0, 1, 3, 4, 2).contiguous(), geometry)
    return out.view(len(out), *w.shape[:2], *out.shape[2:]).transpose(0, 1)


WAYS: tuple[tuple[str, str | None], ...] = (
    ("bf16", "tf32"), ("fp32", "ieee"), ("tf32", "tf32"), ("fp32", None), ("tf32", None), ("tf32", "tf32x3"),
    ("bf16", None),
)  # fmt: skip
"""Precisions, and how the kernels multiply in them or None for columns; what `KERNELS` says comes first."""


@contextlib.contextmanager
def convolving(device: str, precision: str, products: str | None) -> Iterator[None]:
    """Let convolutions of lanes be computed in this way."""
    make_deterministic(torch.device(device), precision)
    with mock.patch.dict(KERNELS, {precision: products}):
        yield


def named(precision: str, products: str | None) -> str:
    """A way in words; bfloat16 is multiplied in one way only."""
    if products is None:
        return f"{precision}, columns"
    return f"{precision}, kernels" + (f" ({products})" if precision != "bf16" else "")


def convolutions(device: str, tiny: bool) -> Rows:
    """Milliseconds of forward and backward of all of ResNet-18's 3 x 3 convolutions, and the kernels that ran."""
    layers, repeats = (LAYERS[:1], 1) if tiny else (LAYERS, 5)

    def row(precision: str, products: str | None, lanes: int) -> Found:
        took, names = 0.0, set()
        with convolving(device, precision, products):
            for layer in layers:
                x, w = _images_and_weights(layer, lanes, PRECISIONS[precision], device)
                both = functools.partial(_both, functools.partial(in_lanes, stride=layer[3]), [x, w])
                took += layer[-1] * milliseconds(both, device, repeats)
                names |= kernels_of(both, device)
        return {"ms": took, "kernels": sorted(names)}

    return {
        f"{named(precision, products)}, {lanes} lanes": functools.partial(row, precision, products, lanes)
        for lanes in ((2,) if tiny else (64, 8))
        for precision, products in (WAYS[3:4] if tiny else WAYS)
    }


def _images_and_weights(layer: tuple[int, ...], lanes: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    inputs, outputs, kernel, _, side, _ = layer
    x = torch.randn(lanes, BATCH, inputs, side, side, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(lanes, outputs, inputs, kernel, kernel, device=device, dtype=dtype, requires_grad=True)
    return x, w


def _both(function: Callable[..., Tensor], given: list[Tensor], slopes: Tensor | None = None) -> list[Tensor]:
    """Outputs, and the gradients of all that is given."""
    out = function(*given)
    return [out, *torch.autograd.grad(out, given, torch.ones_like(out) if slopes is None else slopes.to(out.dtype))]


def lane_operations(device: str, tiny: bool) -> Rows:
    """Layers for all lanes, and the two-step spectrum: errors relative to float64, and milliseconds of both passes."""
    lanes = 2 if tiny else 64
    layers = LAYERS[:1] if tiny else (LAYERS[1], LAYERS[2], LAYERS[-1])
    side, channels = (4, 3) if tiny else (32, 64)

    def norm(precision: str, *, real: int = BATCH, by_torch: bool = False) -> Found:
        make_deterministic(torch.device(device), precision)
        x = torch.randn(lanes, BATCH, channels, side, side, device=device, dtype=PRECISIONS[precision])
        weight, bias = (torch.rand(lanes, channels, device=device) for _ in range(2))
        layer = nn.BatchNorm2d(channels).to(device)
        ours = functools.partial(lane_norm, layer=layer if by_torch else LaneBatchNorm(layer), real=real)
        given = [t.requires_grad_() for t in (x, weight, bias)]
        return _compared(ours, functools.partial(norm_by_formula, real=real), given, device, tiny=tiny)

    def convolution(precision: str, products: str | None, layer: tuple[int, ...]) -> Found:
        given = list(_images_and_weights(layer, lanes, PRECISIONS[precision], device))
        ours, right = (functools.partial(one, stride=layer[3]) for one in (in_lanes, one_by_one))
        with convolving(device, precision, products):
            return _compared(ours, right, given, device, tiny=tiny)

    def transform(*, in_two_steps: bool) -> Found:
        x = torch.randn(2 if tiny else 4, 3 * 131 if tiny else RESNET18, device=device, requires_grad=True)
        with mock.patch.object(tensors, "on_gpu", return_value=in_two_steps):
            return _compared(spectrum_as_reals, torch_spectrum_as_reals, [x], device, tiny=tiny)

    found: Rows = {
        "BatchNorm, fp32": functools.partial(norm, "fp32"),
        "BatchNorm, bf16": functools.partial(norm, "bf16"),
        "BatchNorm, bf16, padded": functools.partial(norm, "bf16", real=7),
        "BatchNorm, fp32, padded": functools.partial(norm, "fp32", real=7),
        "BatchNorm, fp32, by PyTorch": functools.partial(norm, "fp32", by_torch=True),
        "spectrum, library": functools.partial(transform, in_two_steps=False),
        "spectrum, two steps": functools.partial(transform, in_two_steps=True),
    }
    for way in WAYS:
        for layer in layers:
            row = functools.partial(convolution, *way, layer)
            found[f"convolution {layer[0]} to {layer[1]}, side {layer[4]}, {named(*way)}"] = row
    return found


def lane_norm(x: Tensor, weight: Tensor, bias: Tensor, layer: nn.Module, real: int) -> Tensor:
    """A layer mapped over lanes, as cohorts have it; samples from `real` on are padding."""

    def one(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        named = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
        with masked(layer, mask) if real < len(x) else contextlib.nullcontext():
            out: Tensor = functional_call(layer, named, (x,))
        return out

    mask = (torch.arange(x.shape[1], device=x.device) < real).float()
    out: Tensor = vmap(one)(x, weight, bias, torch.zeros_like(weight), torch.ones_like(weight))
    return out


def norm_by_formula(x: Tensor, weight: Tensor, bias: Tensor, real: int) -> Tensor:
    """The same, with statistics of the first `real` samples; padding is normalised with them, too."""
    over, wide = (1, 3, 4), (-1, 1, x.shape[2], 1, 1)
    mean, var = x[:, :real].mean(over, keepdim=True), x[:, :real].var(over, correction=0, keepdim=True)
    return (x - mean) * (var + 1e-5).rsqrt() * weight.view(wide) + bias.view(wide)


def spectrum_as_reals(x: Tensor) -> Tensor:
    """The transform that cohorts have; `torch.autograd` then goes through the inverse one."""
    return torch.view_as_real(dft.rfft(x, "ortho"))


def torch_spectrum_as_reals(x: Tensor) -> Tensor:
    """The library's transform."""
    return torch.view_as_real(torch.fft.rfft(x, norm="ortho"))


def _compared(
    ours: Callable[..., Tensor], right: Callable[..., Tensor], given: list[Tensor], device: str, *, tiny: bool
) -> Found:
    """Errors of outputs and of each gradient, as a share of their norm in float64, and milliseconds."""
    slopes = torch.randn_like(ours(*given).detach())
    expected = _both(right, [t.detach().double().requires_grad_() for t in given], slopes)
    found = _both(ours, given, slopes)
    pairs = zip(found, expected, strict=True)
    errors = [float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]
    del expected, found, pairs  # their memory is needed again
    took = milliseconds(lambda: _both(ours, given, slopes), device, 1 if tiny else 5)
    return {"relative_errors": errors, "ms": took}


def spectra(device: str, tiny: bool) -> Rows:
    """Milliseconds of a cohort's transforms: the magnitudes, the inverse, and the gradient of SCD's divergence.

    By the library, in two steps (the divergence then in one pass), and for a length without a large prime factor,
    which is what padding would cost.
    """
    length = 3 * 131 if tiny else RESNET18
    even = -(-length // 2**12) * 2**12
    options = SpectralOptions()

    def forward(x: Tensor) -> Callable[[], Tensor]:
        return lambda: dft.rfft(x, "ortho").abs()

    def inverse(x: Tensor) -> Callable[[], Tensor]:
        z = dft.rfft(x, "ortho")
        return lambda: dft.irfft(z, x.shape[-1], "ortho")

    def gradient(x: Tensor) -> Callable[[], Tensor]:
        teacher = dft.rfft(x.flip(1), "ortho").abs()

        def term(one: Tensor, teacher: Tensor) -> Tensor:
            whole: Any = SimpleNamespace(weights=one)
            return divergence(whole, teacher, 1.0, options)

        return lambda: vmap(grad(term))(x, teacher)

    def row(make: Callable[[Tensor], Callable[[], Tensor]], way: str, lanes: int) -> Found:
        x = torch.randn(lanes, even if way == "even factors" else length, device=device)
        with mock.patch.object(tensors, "on_gpu", return_value=way == "two steps"):
            return {"length": x.shape[-1], "ms": milliseconds(make(x), device, 1 if tiny else 5)}

    return {
        f"{make.__name__}, {way}, {lanes} lanes": functools.partial(row, make, way, lanes)
        for lanes in ((2,) if tiny else (8, 64))
        for make in (forward, inverse, gradient)
        for way in ("two steps", "library", "even factors")
    }
