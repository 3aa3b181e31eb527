"""BatchNorm, the sum with a residual, and a ReLU of all networks of a cohort as one operation, also of padded batches.

As operations of their own, the sum and the ReLU read and write all samples once more each, and so do their derivatives.
On a GPU the operation and its derivative are kernels (`bench/engine/lanes/norm_kernels.py`), which round
once; elsewhere they consist of PyTorch's operations. Lanes of samples are channels, as in `bench/engine/lanes/norm.py`,
and images are in the channels-last memory format. Parameters and statistics are `[lanes, channels]`, and are read where
they lie among a network's other weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import custom_op

from bench import tensors
from bench.engine.lanes.common import (
    backward_by_hand,
    in_order,
    normalise_by_hand,
    samples_merged,
)

_aten = torch.ops.aten


def norm_relu(
    x: Tensor,
    residual: Tensor | None,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *rest: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised samples `[samples, channels, height, width]` plus the residual, and their ReLU if one is asked for.

    Args:
        mask: 1 for a real sample and 0 for padding, `[samples]`; None: all samples are real.
        mean, var: running statistics `[channels]`; the new ones are returned, too.
        rest: momentum of the running statistics, epsilon, and whether a ReLU follows.
    """
    masks = None if mask is None else mask.to(weight.dtype).unsqueeze(0)
    of_lane = (t.unsqueeze(0) for t in (weight, bias, mean, var))
    out, mean, var, _, _ = _NormRelu.apply(x, residual, masks, *of_lane, *rest)
    return out, mean.squeeze(0), var.squeeze(0)


class _NormRelu(Function):
    """Returns the samples, new running mean and variance, and the batch's mean and 1 / standard deviation."""

    @staticmethod
    def forward(x: Tensor, residual: Tensor | None, mask: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = _forward(x, _listed(residual), _listed(mask), *args)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, residual, mask, weight, *_, ctx.eps, ctx.relu = inputs
        ctx.has_residual = residual is not None
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, output[0] if ctx.relu else x, mask, weight, *output[3:])  # for where it was 0

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rest = ctx.has_residual, ctx.relu, ctx.eps
        of_x, of_weight, of_bias, *of_residual = _Backward.apply(g, *ctx.saved_tensors, *rest)
        return of_x, of_residual[0] if of_residual else None, None, of_weight, of_bias, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lanes, (x, residual) = info.batch_size, args[:2]
        x = samples_merged(x, in_dims[0], lanes)
        residual = None if residual is None else samples_merged(residual, in_dims[1], lanes)
        mask, *channels = (_rows(t, dim, lanes) for t, dim in zip(args[2:7], in_dims[2:7], strict=True))
        out, *rest = _NormRelu.apply(x, residual, mask, *channels, *args[7:])
        return (out.unflatten(1, (lanes, -1)), *(t.unflatten(0, (lanes, -1)) for t in rest)), (1, 0, 0, 0, 0)


class _Backward(Function):
    """Returns the gradients for the samples, the weight, the bias and, where there is one, the residual."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, out: Tensor, mask: Tensor | None, *args: Any) -> tuple[Tensor, ...]:
        return tuple(_backward(g, x, out, _listed(mask), *args))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        g, x, out, mask, weight, _, _, ctx.has_residual, ctx.relu, ctx.eps = inputs
        ctx.save_for_backward(g, x, out, mask, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivative, which methods such as Per-FedAvg need."""
        g, x, out, mask, weight = ctx.saved_tensors
        real = None if mask is None else _real(mask, x)

        def plain(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            passed = g * (out > 0) if ctx.relu else g
            flat = weight.flatten()
            of_x, *channels = backward_by_hand(passed, x, flat, flat, flat, training=True, eps=ctx.eps, real=real)
            of_norm = of_x, *(t.view_as(weight) for t in channels)
            return (*of_norm, passed) if ctx.has_residual else of_norm

        of_g, of_x, of_weight = torch.func.vjp(plain, g, x, weight)[1](gradients)
        return of_g, of_x, None, None, of_weight, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lanes = info.batch_size
        samples = [samples_merged(t, dim, lanes) for t, dim in zip(args[:3], in_dims[:3], strict=True)]
        rows = [_rows(t, dim, lanes) for t, dim in zip(args[3:7], in_dims[3:7], strict=True)]
        of_x, of_weight, of_bias, *rest = _Backward.apply(*samples, *rows, *args[7:])
        of_channels = [t.unflatten(0, (lanes, -1)) for t in (of_weight, of_bias)]
        of_samples = [t.unflatten(1, (lanes, -1)) for t in (of_x, *rest)]
        return (of_samples[0], *of_channels, *of_samples[1:]), (1, 0, 0, *[1] * len(rest))


def _listed(tensor: Tensor | None) -> list[Tensor]:
    """A tensor that may be missing as a list, as PyTorch's custom operations differentiate no missing ones."""
    return [] if tensor is None else [tensor]


def _rows(t: Tensor | None, dim: int | None, lanes: int) -> Any:
    """A row for each of the lanes of all levels of `vmap`; None as it is."""
    if t is None:
        return None
    return (t.expand(lanes, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)


def _real(mask: Tensor, x: Tensor) -> Tensor:
    """Masks `[lanes, samples]` in a shape that goes with samples, `[samples, lanes * channels, 1, 1]`."""
    return mask.T.repeat_interleave(x.shape[1] // len(mask), 1)[:, :, None, None]


@custom_op("pfleague::lane_norm_relu", mutates_args=())
def _forward(
    x: Tensor,
    residual: Sequence[Tensor],
    mask: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the outputs of `norm_relu` and the new statistics; `residual` and `mask` have no tensor, or one."""
    if kernels := tensors.triton_kernels("bench.engine.lanes.norm_kernels", x, *residual):
        results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = kernels.forward(
            x, residual, mask, weight, bias, mean, var, momentum, eps, relu
        )
        return results
    flat = weight.flatten(), bias.flatten(), mean.flatten(), var.flatten()
    if mask:
        real = _real(mask[0], x)
        out, *moved, middle, scale = normalise_by_hand(x, real, *flat, momentum, eps)
    else:
        out, middle, scale, *moved = _aten._native_batch_norm_legit_functional(x, *flat, True, momentum, eps)
    out = sum(residual, out)
    mean, var, middle, scale = (t.view(weight.shape) for t in (*moved, middle, scale))
    return in_order(out.relu() if relu else out), mean, var, middle, scale


@custom_op("pfleague::lane_norm_relu_backward", mutates_args=())
def _backward(
    g: Tensor,
    x: Tensor,
    out: Tensor,
    mask: Sequence[Tensor],
    weight: Tensor,
    batch_mean: Tensor,
    batch_scale: Tensor,
    has_residual: bool,
    relu: bool,
    eps: float,
) -> list[Tensor]:
    """Compute the gradients; `out` is read only where a ReLU follows."""
    if kernels := tensors.triton_kernels("bench.engine.lanes.norm_kernels", g, x, out):
        of_all: list[Tensor] = kernels.backward(g, x, out, mask, weight, batch_mean, batch_scale, has_residual, relu)
        return of_all
    passed = in_order(_aten.threshold_backward(g, out, 0) if relu else g)
    flat, middle, scale = (t.flatten() for t in (weight, batch_mean, batch_scale))
    if mask:
        wide, real = (passed.to(weight.dtype), x.to(weight.dtype)), _real(mask[0], x)
        # It computes the statistics again, in place of those that it is given.
        of_x, *of_channels = backward_by_hand(*wide, flat, middle, middle, training=True, eps=eps, real=real)
        of_x = of_x.to(x.dtype)
    else:
        rest = True, 0.0, [True, True, True]  # the statistics are those of the batch, so that epsilon is not read
        of_x, *of_channels = _aten.native_batch_norm_backward(passed, x, flat, None, None, middle, scale, *rest)
    residual = [passed.clone()] if has_residual else []  # no result of a custom operation may be one of its arguments
    return [in_order(of_x), *(t.view(weight.shape) for t in of_channels), *residual]


@_forward.register_fake
def _(x: Tensor, residual: Sequence[Tensor], mask: Sequence[Tensor], weight: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return in_order(torch.empty_like(x)), *(weight.new_empty(weight.shape) for _ in range(4))


@_backward.register_fake
def _(g: Tensor, x: Tensor, out: Tensor, mask: Sequence[Tensor], weight: Tensor, *rest: Any) -> list[Tensor]:
    results = [in_order(torch.empty_like(x)), weight.new_empty(weight.shape), weight.new_empty(weight.shape)]
    return [*results, in_order(torch.empty_like(g))] if rest[2] else results
