"""Convolutions for the networks of a cohort: every lane has its own weights.

Under `vmap`, PyTorch's convolution becomes a grouped convolution with one group per client, which no library does well
for many clients. The three functions here, a convolution and its derivatives with respect to images and weights, handle
all lanes in one operation, and each one's derivatives are among the three. The operation is a kernel of
`bench/engine/lanes/kernels.py` where `KERNELS` says so. Elsewhere it is one matrix product per lane, of what each
output pixel reads ("columns") and the weights.

Shapes: images `[samples, lanes * channels, height, width]`, outputs `[samples, lanes * filters, rows, columns]`,
weights `[lanes, filters, kernel height, kernel width, channels]`. Images and outputs are in the channels-last memory
format, so that a kernel can load many channels at once; BatchNorm and elementwise operations keep that format.
"""

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.library import custom_op
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from bench import tensors
from bench.engine.lanes.common import Geometry, in_order, samples_merged

_Sizes = list[int]  # PyTorch's custom operations take lists of numbers, not tuples

KERNELS: dict[str, str | None] = {"bf16": "tf32", "tf32": "tf32", "fp32": "ieee"}
"""By precision, how the kernels multiply float32 (Triton's `input_precision`; bfloat16 is multiplied as it is), or None
for columns. docs/performance-log.md has the table that decides it."""

_AT_ONCE = 2**28  # numbers of the columns that are in memory at a time, unless a lane has more


class LaneConvolution(nn.Module):
    """Replacement for a `Conv2d`, or a `Conv1d`, whose signals are images of one row; parameters keep their names."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        padding = (0,) * len(layer.kernel_size) if layer.padding == "valid" else layer.padding
        self.one_row = len(layer.kernel_size) == 1
        row = ((1,), (1,), (0,)) if self.one_row else ((), (), ())
        sizes = zip(row, (layer.kernel_size, layer.stride, padding), strict=True)
        self.geometry = _geometry(*((*first, *rest) for first, rest in sizes))
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `[samples, filters, ...]`, in autocast's dtype where it is on."""
        kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        images, weight = (x.unsqueeze(-2), self.weight.unsqueeze(-2)) if self.one_row else (x, self.weight)
        out = convolve(images.to(kind), _InOrder.apply(weight, kind).unsqueeze(0), self.geometry)
        out = out if self.bias is None else out + self.bias.to(out.dtype).view(-1, 1, 1)
        return out.squeeze(-2) if self.one_row else out


def convolve(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Convolve every lane's images with the lane's weights; the shapes are in the module's docstring."""
    out: Tensor = _Convolve.apply(x, w, geometry)
    return out


def way(precision: str, dtype: str) -> str:
    """Return how a GPU convolves in a precision and type of a cell's settings: `kernels` or `columns`."""
    return "kernels" if dtype == "float32" and KERNELS[precision] and tensors.triton_works() else "columns"


class PlaceMean(nn.Module):
    """Replacement for `AdaptiveAvgPool2d(1)`, for which PyTorch has no `vmap` rule in channels-last format."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean over all pixels, `[samples, channels, 1, 1]`."""
        return x.mean((-2, -1), keepdim=True)


def has_lane_convolution(layer: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d]:
    """Return whether `LaneConvolution` can replace the layer.

    A layer of a derived type may compute something else, unless it says which layer it `computes_as`; one with hooks is
    an adapter's.
    """
    return (
        vars(type(layer)).get("computes_as", type(layer)) in (nn.Conv1d, nn.Conv2d)  # not what a base class says
        and isinstance(layer, nn.Conv1d | nn.Conv2d)
        and layer.groups == 1
        and set(layer.dilation) == {1}
        and layer.padding_mode == "zeros"
        and layer.padding != "same"
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    )


def in_groups(layer: nn.Module) -> bool:
    """Return whether a cohort would compute the layer as a convolution with a group for each client, which no GPU
    library does well."""
    return isinstance(layer, _ConvNd) and not has_lane_convolution(layer) and not layer._forward_hooks


class _InOrder(Function):
    """Casts a layer's weights and reorders them for the kernels, in one copy; the backward pass does the reverse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, kind: torch.dtype) -> Tensor:
        ordered: Tensor = _weights_in_order(w, kind)
        return ordered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g.permute(0, 3, 1, 2).to(ctx.kind, memory_format=torch.contiguous_format), None


class _Convolve(Function):
    """Convolution of every lane's images with the lane's weights, with derivatives."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        out: Tensor = _convolution(x, w, *map(list, geometry))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.geometry = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        of_x = _OfInput.apply(h, w, ctx.geometry, tuple(x.shape[2:])) if ctx.needs_input_grad[0] else None
        return of_x, _OfWeight.apply(h, x, ctx.geometry, len(w)), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, int]:
        lanes = info.batch_size
        out = _Convolve.apply(samples_merged(x, in_dims[0], lanes), _weights(w, in_dims[1], lanes), *rest)
        return out.unflatten(1, (lanes, -1)), 1


class _OfInput(Function):
    """Derivative of the convolution with respect to images: maps a gradient of the outputs to one of the images."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, geometry: Geometry, size: tuple[int, int]) -> Tensor:
        out: Tensor = _convolution_of_input(g, w, list(size), *map(list, geometry))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, ctx.geometry, _ = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        return _Convolve.apply(h, w, ctx.geometry), _OfWeight.apply(g, h, ctx.geometry, len(w)), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], g: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, int]:
        lanes = info.batch_size
        out = _OfInput.apply(samples_merged(g, in_dims[0], lanes), _weights(w, in_dims[1], lanes), *rest)
        return out.unflatten(1, (lanes, -1)), 1


class _OfWeight(Function):
    """Derivative of the convolution with respect to weights: maps a gradient of the outputs to one of the weights."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, geometry: Geometry, lanes: int) -> Tensor:
        out: Tensor = _convolution_of_weight(g, x, lanes, *map(list, geometry))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, x, ctx.geometry, _ = inputs
        ctx.save_for_backward(g, x)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        g, x = ctx.saved_tensors
        return _Convolve.apply(x, h, ctx.geometry), _OfInput.apply(g, h, ctx.geometry, tuple(x.shape[2:])), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], g: Tensor, x: Tensor, geometry: Geometry, within: int
    ) -> tuple[Tensor, int]:
        lanes = info.batch_size
        images = [samples_merged(t, dim, lanes) for t, dim in zip((g, x), in_dims[:2], strict=True)]
        return _OfWeight.apply(*images, geometry, lanes * within).unflatten(0, (lanes, within)), 0


def _weights(t: Tensor, dim: int | None, lanes: int) -> Tensor:
    """Move lanes to the front: `[lanes, ...]`; with nested `vmap`s the lanes of all levels are flattened."""
    return (t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)


@custom_op("pfleague::lane_convolution", mutates_args=())
def _convolution(x: Tensor, w: Tensor, kernel: _Sizes, stride: _Sizes, padding: _Sizes) -> Tensor:
    geometry = _geometry(kernel, stride, padding)
    rows, columns = geometry.output(x.shape[2], x.shape[3])
    if taken := _kernels(x, w, numbers=len(x) * w.shape[0] * w.shape[1] * rows * columns):
        out: Tensor = taken[0].convolve(x, w, geometry, taken[1])
        return out
    return _by_columns(x, w.flatten(2).transpose(1, 2), geometry)


@custom_op("pfleague::lane_weights", mutates_args=())
def _weights_in_order(w: Tensor, kind: torch.dtype) -> Tensor:
    """Weights `[..., filters, channels, kernel height, kernel width]` in the order and type that the kernels read."""
    if w.dtype == torch.float32 and (kernels := tensors.triton_kernels("bench.engine.lanes.kernels", w)):
        ordered: Tensor = kernels.weights_in_order(w, kind)
        return ordered
    return w.movedim(-3, -1).to(kind, copy=True, memory_format=torch.contiguous_format)


@_weights_in_order.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], w: Tensor, kind: torch.dtype) -> tuple[Tensor, int]:
    return _weights_in_order(w.movedim(in_dims[0] or 0, 0), kind), 0


@custom_op("pfleague::lane_convolution_of_input", mutates_args=())
def _convolution_of_input(
    g: Tensor, w: Tensor, size: _Sizes, kernel: _Sizes, stride: _Sizes, padding: _Sizes
) -> Tensor:
    if taken := _kernels(g, w, numbers=len(g) * len(w) * w.shape[4] * size[0] * size[1]):
        geometry = _geometry(kernel, stride, padding)
        gradient: Tensor = taken[0].of_input(g, w, geometry, (size[0], size[1]), taken[1])
        return gradient
    # A convolution with the weights turned around, of the gradients with zeros between them (stride) and around them.
    rows, columns = ((n - 1) * step + 1 for n, step in zip(g.shape[2:], stride, strict=True))
    apart = in_order(g.new_zeros(*g.shape[:2], rows, columns))
    apart[:, :, :: stride[0], :: stride[1]] = g
    top, left = (taps - 1 - edge for taps, edge in zip(kernel, padding, strict=True))
    below, right = size[0] + kernel[0] - 1 - top - rows, size[1] + kernel[1] - 1 - left - columns
    turned = w.flip(2, 3).permute(0, 2, 3, 1, 4).flatten(1, 3)
    return _by_columns(functional.pad(apart, (left, right, top, below)), turned, _geometry(kernel, (1, 1), (0, 0)))


@custom_op("pfleague::lane_convolution_of_weight", mutates_args=())
def _convolution_of_weight(g: Tensor, x: Tensor, lanes: int, kernel: _Sizes, stride: _Sizes, padding: _Sizes) -> Tensor:
    geometry = _geometry(kernel, stride, padding)
    if taken := _kernels(g, x, numbers=g.shape[1] * math.prod(kernel) * x.shape[1]):
        gradient: Tensor = taken[0].of_weight(g, x, geometry, lanes, taken[1])
        return gradient
    out = x.new_empty(lanes, g.shape[1] // lanes, *kernel, x.shape[1] // lanes)
    slopes = _of_lanes(in_order(g), lanes).transpose(1, 2)
    for read, slope, product in _columns(x, lanes, geometry, slopes, out.flatten(2)):
        torch.bmm(slope, read, out=product)
    return out


@_weights_in_order.register_fake
def _(w: Tensor, kind: torch.dtype) -> Tensor:
    return w.movedim(-3, -1).new_empty((*w.shape[:-3], *w.shape[-2:], w.shape[-3]), dtype=kind)


@_convolution.register_fake
def _(x: Tensor, w: Tensor, kernel: _Sizes, stride: _Sizes, padding: _Sizes) -> Tensor:
    rows, columns = _geometry(kernel, stride, padding).output(x.shape[2], x.shape[3])
    return in_order(x.new_empty(len(x), w.shape[0] * w.shape[1], rows, columns))


@_convolution_of_input.register_fake
def _(g: Tensor, w: Tensor, size: _Sizes, *_: _Sizes) -> Tensor:
    return in_order(g.new_empty(len(g), len(w) * w.shape[4], *size))


@_convolution_of_weight.register_fake
def _(g: Tensor, x: Tensor, lanes: int, kernel: _Sizes, *_: _Sizes) -> Tensor:
    return g.new_empty(lanes, g.shape[1] // lanes, *kernel, x.shape[1] // lanes)


def _kernels(*given: Tensor, numbers: int) -> Any:
    """The kernels and how they multiply, or None where the tensors or `KERNELS` want columns, or where the results are
    more numbers than a kernel's 32-bit places."""
    if numbers >= 2**31:
        return None
    single = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
    products = KERNELS["bf16" if given[0].dtype == torch.bfloat16 else single]
    kernels = tensors.triton_kernels("bench.engine.lanes.kernels", *given) if products else None
    return kernels and (kernels, products)


def _by_columns(x: Tensor, matrices: Tensor, geometry: Geometry) -> Tensor:
    """Convolve by a matrix `[taps * channels, filters]` of each lane."""
    lanes, _, filters = matrices.shape
    shape = len(x), lanes * filters, *geometry.output(x.shape[2], x.shape[3])
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    for read, matrix, product in _columns(x, lanes, geometry, matrices, _of_lanes(out, lanes)):
        torch.bmm(read, matrix, out=product)
    return out


def _columns(x: Tensor, lanes: int, geometry: Geometry, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield what output pixels read, `[lanes, samples * rows * columns, taps * channels]`, some lanes at a time.

    The same lanes of the other tensors come beside it.
    """
    above, left = geometry.padding
    read = functional.pad(x, (left, left, above, above))
    read = read.view(len(x), lanes, x.shape[1] // lanes, *read.shape[2:])
    for dim, taps, step in zip((3, 4), geometry.kernel, geometry.stride, strict=True):
        read = read.unfold(dim, taps, step)
    read = read.permute(1, 0, 3, 4, 5, 6, 2)
    pixels, numbers = math.prod(read.shape[1:4]), math.prod(read.shape[4:])
    at_once = max(1, _AT_ONCE // max(1, pixels * numbers))
    for some, *rest in zip(*(torch.split(t, at_once) for t in (read, *others)), strict=True):
        yield some.reshape(len(some), pixels, numbers), *rest


def _of_lanes(images: Tensor, lanes: int) -> Tensor:
    """A view of images in the channels-last format, `[lanes, samples * rows * columns, channels]`."""
    return images.permute(0, 2, 3, 1).flatten(0, 2).view(-1, lanes, images.shape[1] // lanes).transpose(0, 1)


def _geometry(kernel: Any, stride: Any, padding: Any) -> Geometry:
    return Geometry(*((int(pair[0]), int(pair[1])) for pair in (kernel, stride, padding)))
