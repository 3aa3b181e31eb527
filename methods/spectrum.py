"""Spectra of weight vectors and their divergence: equations of "Spectral Co-Distillation" (NeurIPS 2023), section 3.

The full DFT of a real vector is symmetric, so everything is computed from its distinct frequencies. Each is counted as
often as it occurs in the paper's index range `0 .. ceil(tau d) - 1`, so values and gradients are those of the full
transform.

The functions take the options as `o`, any object with the attributes of `SpectralOptions`.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from bench.method import Hyperparameters, Params, hp, spectral_divergence, takes_one_pass
from methods.frequencies import counts, magnitudes


class SpectralOptions(Hyperparameters):
    """Choices that the paper leaves open or that its released code makes differently.

    Attributes:
        normalise: `simplex` (sum 1: a true KL divergence), `mean` (mean 1: d times that), `none` (as printed; not a
            divergence), `gen_kl` (as printed plus the terms -p + q of the generalised KL divergence).
        order: whether truncation comes before normalisation.
        layout: one transform of all parameters (`flat`), or one per tensor with the share tau of each tensor:
            normalised over all tensors together (`per_layer`), or for each tensor, and the divergences are summed
            (`sum_of_layers`).
        transform: `dft` counts conjugate frequencies as in the full DFT, `rfft` counts each distinct one once, and
            `fft2_layer` takes the two-dimensional DFT of each tensor as an (out, rest) matrix.
        band: whether tau is a share of the full DFT's entries or of the distinct frequencies.
        direction: whether student or teacher is the first argument.
        params: all trainable parameters, or only those named `weight`.
        scale: factor on the divergence: 1, d, or the ratio of the gradient norms (lambda is then the norm of the
            regulariser's gradient relative to that of the cross-entropy).
        eps: added inside the logarithms, in units of the teacher's mean entry.
        detach_student: as in the released code, the term has no gradient, so it is computed but has no effect.
        skip_first_batch: leave the regulariser out in the first batch of each epoch (released code).
        extra_l2: the released code's additional `extra_l2 * ||w - w_G||` in the personal phase, where w_G is the
            received generic model.
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
        inside = counts(group, tau, o, teacher).inside
        own, begin = teacher[begin : begin + len(inside)], begin + len(inside)
        if takes_one_pass(w.weights) and len(group) == 1 and _is_one_sum(o):
            rest = o.normalise == "gen_kl", o.direction == "student_teacher"
            total = total + spectral_divergence(group[0], own, inside, o.eps * own.mean(), o.fft_norm, *rest)
        else:
            total = total + _divergence(_spectrum(group, tau, o), own, inside, o)
    return (total * w.spec.d if o.scale == "d" else total).to(teacher.dtype)


def _is_one_sum(o: Any) -> bool:
    """Whether D is a sum over magnitudes as they are, with a gradient."""
    of_magnitudes = o.transform != "fft2_layer" and o.normalise in ("none", "gen_kl")
    return of_magnitudes and o.reduction == "sum" and not o.detach_student


def agree(w: Params, teacher: Tensor, tau: float, o: Any) -> Tensor:
    """Whether w has the teacher's spectrum up to rounding, `[]`; the gradient of D then has no meaningful direction."""
    student = spectrum(w, tau, o)
    return (student - teacher).norm() <= math.sqrt(torch.finfo(teacher.dtype).eps) * teacher.norm()


def _spectrum(pieces: list[Tensor], tau: float, o: Any) -> Tensor:
    found = torch.cat([magnitudes(piece, o) for piece in pieces])
    often = counts(pieces, tau, o, found)
    kept = often.inside if o.order == "truncate_first" else often.whole
    # float64, as sums over millions of entries lose precision in float32.
    total = (kept * found).sum(dtype=torch.float64)
    match o.normalise:
        case "simplex":
            return found / total.to(found.dtype)
        case "mean":
            return found * (kept.sum() / total).to(found.dtype)
    return found


def _divergence(student: Tensor, teacher: Tensor, inside: Tensor, o: Any) -> Tensor:
    if o.detach_student:
        student = student.detach()
    first, second = (student, teacher) if o.direction == "student_teacher" else (teacher, student)
    eps = o.eps * teacher.mean()
    terms = first * torch.log((first + eps) / (second + eps))
    if o.normalise == "gen_kl":
        terms = terms - first + second
    total = (inside * terms).sum(dtype=torch.float64)
    return total / inside.sum(dtype=torch.float64) if o.reduction == "mean" else total


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
