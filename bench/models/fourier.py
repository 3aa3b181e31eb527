"""A convolution of small maps that uses fast Fourier transforms if they are faster.

With transforms, a 5 x 5 convolution needs about a third of the multiplications (Mathieu et al. 2014, arXiv:1312.5851).
NNPACK, a part of PyTorch, computes it this way on a CPU, but PyTorch itself uses NNPACK for batches on phones only.
NNPACK does not support AVX-512, so PyTorch's usual convolution is faster on a processor with AVX-512.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

_TILE = 16  # side of NNPACK's largest tile; a larger map is cut into overlapping tiles


class FourierConv2d(nn.Conv2d):
    """`nn.Conv2d` with stride 1 and without padding; values are equal up to rounding in float32.

    Transforms are used only for float32 on a CPU without AVX-512, outside transforms of `torch.func`, and unless
    `torch.backends.nnpack.set_flags(False)` was called. In all other cases it calls `nn.Conv2d`.

    Attributes:
        computes_as: the layer that a cohort on a GPU may take it for.
    """

    computes_as: ClassVar[type[nn.Module]] = nn.Conv2d

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[batch, channels, height, width]`, in the memory layout of `x`."""
        if not _possible(x):
            return super().forward(x)
        # A map with one channel is contiguous in both layouts, so only its strides show which one it has.
        layout = torch.channels_last if x.stride(1) == 1 else torch.contiguous_format
        y: Tensor = _Convolve.apply(x.contiguous(), self.weight, self.bias)
        return y.contiguous(memory_format=layout)


def _possible(x: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and len(x) > 0
        and max(x.shape[-2:]) <= _TILE
        and not torch._C._are_functorch_transforms_active()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.cpu.get_cpu_capability() != "AVX512"
        and torch._C._get_nnpack_enabled()
        and torch.backends.nnpack.is_available()  # type: ignore[no-untyped-call]
    )


class _Convolve(torch.autograd.Function):
    """The convolution and its gradients, which are convolutions of the same kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolution(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            _gradient_of_x(x, weight, gradient) if for_x else None,
            _gradient_of_weight(x, gradient) if for_weight else None,
            gradient.sum((0, 2, 3)) if for_bias else None,
        )


def _gradient_of_x(x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    margin = weight.shape[-1] - 1
    if max(x.shape[-2:]) + margin > _TILE:
        by_torch: Tensor = conv2d_input(x.shape, weight, gradient)  # type: ignore[no-untyped-call]
        return by_torch
    return _convolution(gradient, weight.flip(2, 3).transpose(0, 1).contiguous(), margin=margin)


def _gradient_of_weight(x: Tensor, gradient: Tensor) -> Tensor:
    filters = _convolution(x.transpose(0, 1).contiguous(), gradient.transpose(0, 1).contiguous())
    return filters.transpose(0, 1)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, margin: int = 0) -> Tensor:
    return torch._nnpack_spatial_convolution(x, weight, bias, margin)
