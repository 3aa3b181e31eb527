"""Spectra of weight vectors and their divergence: equations of "Spectral Co-Distillation" (NeurIPS 2023), section 3.

The full DFT of a real vector is symmetric, so everything is computed from its distinct frequencies, each counted as
often as the paper's index range `0 .. ceil(tau d) - 1` counts it. Values and gradients are those of the full transform.

Every function takes the options as `o`, any object with the attributes of `SpectralOptions`.
"""

import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.method import Hyperparameters, Params, hp


class SpectralOptions(Hyperparameters):
    """What the paper leaves open, or what its released code does otherwise.

    Attributes:
        normalise: `simplex` (sum 1: a true KL divergence), `mean` (mean 1: d times that), `none` (as printed; not a
            divergence), `gen_kl` (as printed plus the terms -p + q of the generalised KL divergence).
        order: whether truncation comes before normalisation.
        layout: one transform of all parameters (`flat`), or one per tensor with tau of each: normalised over all
            tensors together (`per_layer`), or each by itself, the divergences summed (`sum_of_layers`).
        transform: `dft` counts conjugate frequencies as the full DFT does, `rfft` each distinct one once, `fft2_layer`
            takes the two-dimensional DFT of each tensor as an (out, rest) matrix.
        band: whether tau is a share of the full DFT's entries or of the distinct frequencies.
        direction: which of student and teacher is the first argument.
        params: all trainable parameters, or those named `weight` only.
        scale: factor on the divergence: 1, d, or the ratio of the gradient norms (lambda is then the regulariser's
            share of the cross-entropy gradient).
        eps: added inside the logarithms, in units of the teacher's mean entry.
        detach_student: the released code's missing gradient: the term is computed and moves nothing.
        skip_first_batch: leave the regulariser out of the first batch of each epoch (released code).
        extra_l2: the released code's additional `extra_l2 * ||w - w_G||` in the personal phase, with w_G the generic
            model as it was received.
    """

    normalise: Literal["simplex", "mean", "none", "gen_kl"] = "gen_kl"
    order: Literal["truncate_first", "normalise_first"] = "truncate_first"
    layout: Literal["flat", "per_layer", "sum_of_layers"] = "flat"
    transform: Literal["dft", "rfft", "fft2_layer"] = "dft"
    fft_norm: Literal["backward", "ortho"] = "ortho"
    band: Literal["paper", "rfft_fraction"] = "paper"
    direction: Literal["student_teacher", "teacher_student"] = "student_teacher"
    params: Literal["trainable", "weights_only"] = "trainable"
    reduction: Literal["sum", "mean"] = "sum"
    scale: Literal["one", "d", "grad_balance"] = "one"
    eps: float = hp(1e-12, ge=0, static=True)
    detach_student: bool = False
    skip_first_batch: bool = False
    extra_l2: float = hp(0.0, ge=0)


class Counts(NamedTuple):
    """How often each distinct frequency counts: inside the band, and in the whole spectrum."""

    inside: Tensor
    whole: Tensor


def spectrum(w: Params, tau: float, o: Any) -> Tensor:
    """The normalised magnitudes of w inside the band, one per distinct frequency."""
    return torch.cat([_spectrum(group, tau, o) for group in _groups(w, o)])


def divergence(w: Params, teacher: Tensor, tau: float, o: Any) -> Tensor:
    """D(student || teacher) of the paper, `[]`; `teacher` is a `spectrum` with the same tau and options."""
    if tau == 0:
        return w.weights.new_zeros(())
    total = torch.zeros((), dtype=torch.float64, device=teacher.device)
    begin = 0
    for group in _groups(w, o):
        student = _spectrum(group, tau, o)
        own, begin = teacher[begin : begin + len(student)], begin + len(student)
        total = total + _divergence(student, own, _weights(group, tau, o, teacher).inside, o)
    return (total * w.spec.d if o.scale == "d" else total).to(teacher.dtype)


def agree(w: Params, teacher: Tensor, tau: float, o: Any) -> Tensor:
    """Whether w has the teacher's spectrum but for rounding, `[]`: then the gradient of D has no direction."""
    student = spectrum(w, tau, o)
    return (student - teacher).norm() <= math.sqrt(torch.finfo(teacher.dtype).eps) * teacher.norm()


def _spectrum(pieces: list[Tensor], tau: float, o: Any) -> Tensor:
    magnitudes = torch.cat([_transform(piece, o) for piece in pieces])
    counts = _weights(pieces, tau, o, magnitudes)
    kept = counts.inside if o.order == "truncate_first" else counts.whole
    # Sums over millions of entries cancel in float32.
    total = (kept * magnitudes).sum(dtype=torch.float64)
    match o.normalise:
        case "simplex":
            return magnitudes / total.to(magnitudes.dtype)
        case "mean":
            return magnitudes * (kept.sum() / total).to(magnitudes.dtype)
    return magnitudes


def _divergence(student: Tensor, teacher: Tensor, counts: Tensor, o: Any) -> Tensor:
    if o.detach_student:
        student = student.detach()
    first, second = (student, teacher) if o.direction == "student_teacher" else (teacher, student)
    eps = o.eps * teacher.mean()
    terms = first * torch.log((first + eps) / (second + eps))
    if o.normalise == "gen_kl":
        terms = terms - first + second
    total = (counts * terms).sum(dtype=torch.float64)
    return total / counts.sum(dtype=torch.float64) if o.reduction == "mean" else total


def _weights(pieces: list[Tensor], tau: float, o: Any, like: Tensor) -> Counts:
    return _counts(tuple(tuple(p.shape) for p in pieces), tau, _choices(o), like.dtype, like.device)


def _groups(w: Params, o: Any) -> list[list[Tensor]]:
    """The pieces that are normalised together."""
    pieces = _pieces(w, o)
    return [[piece] for piece in pieces] if o.layout == "sum_of_layers" else [pieces]


def _pieces(w: Params, o: Any) -> list[Tensor]:
    """The vectors (or matrices) that are transformed, in the order of `named_parameters`."""
    if o.transform != "fft2_layer" and o.layout == "flat" and o.params == "trainable":
        return [w.weights]
    tensors = w.tensors()
    chosen = [tensors[e.name] for e in w.spec.params if o.params == "trainable" or e.name.rsplit(".")[-1] == "weight"]
    if o.transform == "fft2_layer":
        return [t.reshape(t.shape[0], -1) if t.dim() > 1 else t for t in chosen]
    flat = [t.reshape(-1) for t in chosen]
    return [torch.cat(flat)] if o.layout == "flat" else flat


def _transform(piece: Tensor, o: Any) -> Tensor:
    # `abs` has gradient 0 at 0, where the square root of re^2 + im^2 would give NaN.
    if piece.dim() == 2:
        return torch.fft.fft2(piece, norm=o.fft_norm).abs().reshape(-1)
    if o.transform == "fft2_layer":
        return torch.fft.fft(piece, norm=o.fft_norm).abs()
    magnitudes: Tensor = _Magnitudes.apply(piece, o.fft_norm)[0]
    return magnitudes


class _Magnitudes(torch.autograd.Function):
    """|rfft(x)| with the gradient as one inverse rfft; autograd's own is a complex transform of twice the length."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, norm: str) -> tuple[Tensor, Tensor]:
        """Magnitudes and phases times magnitudes, `[d // 2 + 1]` each."""
        transformed = torch.fft.rfft(x, norm=norm)
        return transformed.abs(), transformed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the gradient needs."""
        ctx.d, ctx.norm = inputs[0].shape[-1], inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """Re F^H (u g) over the distinct frequencies; u = z / |z|, and 0 where z = 0."""
        magnitudes, transformed = ctx.saved_tensors
        share = torch.where(magnitudes > 0, g / magnitudes, 0.0)
        # The inverse counts every frequency but the first and the middle one twice.
        half = torch.full_like(share, 0.5)
        half[..., 0] = 1.0
        if ctx.d % 2 == 0:
            half[..., -1] = 1.0
        norm = "forward" if ctx.norm == "backward" else "ortho"
        return torch.fft.irfft(transformed * (share * half), n=ctx.d, norm=norm), None


def _choices(o: Any) -> tuple[str, str, str]:
    return o.layout, o.transform, o.band


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
