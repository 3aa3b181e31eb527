"""BatchNorm for the networks of a cohort, with as few passes over memory as for one network.

Under `vmap`, PyTorch's BatchNorm normalises first and then scales and shifts in separate passes; its backward pass does
the same. Here the channels of all lanes are concatenated, `[samples, lanes * channels, ...]`, and one kernel does all
the work. It rounds differently, so it is used on GPUs only, and results on a CPU stay the same bit by bit.

Images are normalised in training by `bench/engine/lanes/norm_relu.py`, which adds a residual and takes the ReLU that
follows in the same operation.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm

from bench.engine.lanes.common import (
    backward_by_hand,
    channels_apart,
    channels_merged,
    normalise_by_hand,
    samples_merged,
)
from bench.engine.lanes.norm_relu import norm_relu

_aten = torch.ops.aten


class PaddingUnknownError(Exception):
    """Input of a layer that is not the batch's, so that the layer cannot know which samples are padding."""


class LaneBatchNorm(nn.Module):
    """Replacement for a BatchNorm layer that has weights and running statistics.

    Attributes:
        relu: whether a ReLU follows, which is then part of this layer.
        mask: None: all samples are real; a tensor `[samples]`: 1 for a real sample and 0 for padding, which the
            statistics leave out; `unknown`: there may be padding, so that training raises `PaddingUnknownError`.
    """

    mask: Tensor | Literal["unknown"] | None = None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.relu = False
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.momentum, self.eps = layer.momentum or 0.0, layer.eps
        self.train(layer.training)
        self._forward_pre_hooks.update(layer._forward_pre_hooks)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Normalised samples `[samples, channels, ...]`; in training mode it updates the running statistics.

        A residual of the same shape is added before the ReLU.
        """
        if self.training and not isinstance(self.mask, str) and x.dim() == 4:
            running = self.running_mean, self.running_var
            rest = self.momentum, self.eps, self.relu
            out, *moved = norm_relu(x, residual, self.mask, self.weight, self.bias, *running, *rest)
            self._move(*moved)
            return out
        out = self._masked(x) if self.training and self.mask is not None else self._unmasked(x)
        out = out if residual is None else out + residual
        return out.relu() if self.relu else out

    def _unmasked(self, x: Tensor) -> Tensor:
        running = self.running_mean, self.running_var
        rest = self.training, self.momentum, self.eps
        out, mean, var, _, _ = _Norm.apply(x, self.weight, self.bias, *running, *rest)
        if self.training:
            self._move(mean, var)
        normalised: Tensor = out
        return normalised

    def _move(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)

    def _masked(self, x: Tensor) -> Tensor:
        """Normalise with statistics of the real samples only, in plain operations."""
        if not isinstance(self.mask, Tensor):
            raise PaddingUnknownError
        real = self.mask.to(self.weight.dtype).view(-1, *([1] * (x.dim() - 1)))
        rest = self.running_mean, self.running_var, self.momentum, self.eps
        out, mean, var, _, _ = normalise_by_hand(x, real, self.weight, self.bias, *rest)
        self._move(mean, var)
        return out


class Padding(NamedTuple):
    """The samples of a batch that may have padding, and their weights `[samples]`, 0 for padding."""

    x: Tensor | None
    weight: Tensor

    def left_out(self, net: nn.Module, inputs: Tensor) -> AbstractContextManager[None]:
        """Return a context in which the network's BatchNorm layers leave out padding if `inputs` are these samples."""
        return masked(net, self.weight if inputs is self.x else "unknown")


@contextmanager
def masked(net: nn.Module, mask: Tensor | Literal["unknown"]) -> Iterator[None]:
    """Let the network's BatchNorm layers leave out padding inside this context (see `LaneBatchNorm.mask`)."""
    layers = [layer for layer in net.modules() if isinstance(layer, LaneBatchNorm)]
    for layer in layers:
        layer.mask = mask
    try:
        yield
    finally:
        for layer in layers:
            layer.mask = None


def has_lane_norm(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether `LaneBatchNorm` can replace the layer; one of a derived type may compute something else."""
    return (
        type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        and isinstance(layer, _BatchNorm)
        and layer.affine
        and layer.track_running_stats
        and layer.momentum is not None
        and not layer._forward_hooks
    )


class _Norm(Function):
    """Returns normalised samples, new running mean and variance, and the batch's mean and 1 / standard deviation."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float
    ) -> tuple[Tensor, ...]:
        out, batch_mean, batch_scale, mean, var = _aten._native_batch_norm_legit_functional(
            x, weight, bias, mean, var, training, momentum, eps
        )
        return out, mean, var, batch_mean, batch_scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, *_, ctx.training, _, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        # The running statistics from the output: without training they equal those from the input, which may change in
        # place.
        ctx.save_for_backward(x, weight, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _NormBackward.apply(gradient, *ctx.saved_tensors, ctx.training, ctx.eps)
        return *gradients, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lanes = info.batch_size
        samples = samples_merged(args[0], in_dims[0], lanes)
        channels = [channels_merged(t, dim, lanes) for t, dim in zip(args[1:5], in_dims[1:5], strict=True)]
        out, *rest = _Norm.apply(samples, *channels, *args[5:])
        return (out.unflatten(1, (lanes, -1)), *(channels_apart(t, lanes) for t in rest)), (1, 0, 0, 0, 0)


class _NormBackward(Function):
    """Returns the gradients for the samples, the weight and the bias."""

    @staticmethod
    def forward(
        gradient: Tensor,
        x: Tensor,
        weight: Tensor,
        mean: Tensor,
        var: Tensor,
        batch_mean: Tensor,
        batch_scale: Tensor,
        training: bool,
        eps: float,
    ) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = _aten.native_batch_norm_backward(
            gradient, x, weight, mean, var, batch_mean, batch_scale, training, eps, [True, True, True]
        )
        return gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        gradient, x, weight, mean, var, _, _, ctx.training, ctx.eps = inputs
        ctx.save_for_backward(gradient, x, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The second derivative, which methods such as Per-FedAvg need."""
        gradient, x, weight, mean, var = ctx.saved_tensors

        def plain(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return backward_by_hand(gradient, x, weight, mean, var, training=ctx.training, eps=ctx.eps)

        pull = torch.func.vjp(plain, gradient, x, weight)[1]
        return *pull(gradients), None, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lanes = info.batch_size
        samples = [samples_merged(t, dim, lanes) for t, dim in zip(args[:2], in_dims[:2], strict=True)]
        channels = [channels_merged(t, dim, lanes) for t, dim in zip(args[2:7], in_dims[2:7], strict=True)]
        of_x, *rest = _NormBackward.apply(*samples, *channels, *args[7:])
        return (of_x.unflatten(1, (lanes, -1)), *(channels_apart(t, lanes) for t in rest)), (1, 0, 0)
