"""Fourier transforms of weight vectors, and the multiplicity of each distinct frequency. Used by `methods.spectrum`."""

import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.method import irfft, rfft


class Counts(NamedTuple):
    """How often each distinct frequency is counted: inside the band, and in the whole spectrum."""

    inside: Tensor
    whole: Tensor


def magnitudes(piece: Tensor, o: Any) -> Tensor:
    """Magnitudes `[frequencies]` of a vector `[d]` or of a matrix; `o` as in `methods.spectrum`."""
    # `abs` has gradient 0 at 0, where the square root of re^2 + im^2 would give NaN.
    if piece.dim() == 2:
        return torch.fft.fft2(piece, norm=o.fft_norm).abs().reshape(-1)
    if o.transform == "fft2_layer":
        return torch.fft.fft(piece, norm=o.fft_norm).abs()
    found: Tensor = _Magnitudes.apply(piece, o.fft_norm)[0]
    return found


class _Magnitudes(torch.autograd.Function):
    """|rfft(x)| with the gradient as one inverse rfft; autograd's own is a complex transform of twice the length."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, norm: Literal["backward", "ortho"]) -> tuple[Tensor, Tensor]:
        """Magnitudes and phases times magnitudes, `[d // 2 + 1]` each."""
        transformed = rfft(x, norm)
        return transformed.abs(), transformed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: tuple[Tensor, Tensor]) -> None:
        """Save what the gradient needs."""
        ctx.d, ctx.norm = inputs[0].shape[-1], inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """Re F^H (u g) over the distinct frequencies; u = z / |z|, and 0 where z = 0."""
        magnitudes, transformed = ctx.saved_tensors
        share = torch.where(magnitudes > 0, g / magnitudes, 0.0)
        # The inverse transform counts every frequency twice, except the first and (for even d) the middle one.
        half = torch.full(share.shape[-1:], 0.5, dtype=share.dtype, device=share.device)
        half[0] = 1.0
        if ctx.d % 2 == 0:
            half[-1] = 1.0
        return irfft(transformed * (share * half), ctx.d, "forward" if ctx.norm == "backward" else "ortho"), None


def counts(pieces: list[Tensor], tau: float, o: Any, like: Tensor) -> Counts:
    """The counts of pieces that are normalised together, with the type and device of `like`."""
    choices = (o.layout, o.transform, o.band)
    return _counts(tuple(tuple(p.shape) for p in pieces), tau, choices, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _counts(
    shapes: tuple[tuple[int, ...], ...],
    tau: float,
    choices: tuple[str, str, str],
    dtype: torch.dtype,
    device: torch.device,
) -> Counts:
    layout, transform, band = choices
    if transform == "fft2_layer":
        sizes = [math.prod(shape) for shape in shapes]
        blocks = [sum(sizes)] if layout == "flat" else sizes
        inside = np.concatenate([np.arange(d) < math.ceil(tau * d) for d in blocks]).astype(np.float64)
        whole = np.ones_like(inside)
    else:
        pairs = [_symmetric(math.prod(shape), tau, transform, band) for shape in shapes]
        inside, whole = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return Counts(
        torch.as_tensor(inside, dtype=dtype, device=device), torch.as_tensor(whole, dtype=dtype, device=device)
    )


def _symmetric(d: int, tau: float, transform: str, band: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Counts of the distinct frequencies 0 .. d//2 of a real vector of length d."""
    k = np.arange(d // 2 + 1)
    twin = (k != 0) & (2 * k != d) & (transform == "dft")
    if band == "rfft_fraction":
        first = k < math.ceil(tau * len(k))
        return first * (1.0 + twin), 1.0 + twin
    last = math.ceil(tau * d)
    return (k < last) * 1.0 + (twin & (d - k < last)) * 1.0, 1.0 + twin
