"""The discrete Fourier transform (DFT) of long real vectors, such as a network's weights.

GPU libraries transform a length with a large prime factor as a convolution of at least twice the size, for which they
need memory: some 17 GB for 64 vectors of ResNet-18's 11,173,962 = 2 * 3 * 397 * 4691 weights. Here a length d = a * b
is transformed in two steps, as b transforms of length a, a multiplication with roots of unity, and a transforms of
length b (Cooley and Tukey 1965). It is the same DFT but for rounding. Vectors are taken a few at a time, so that little
memory is needed.

Entry `j1 * b + j2` of a vector adds to frequency `k2 * a + k1`. Only `k1` up to `a // 2` are computed, because the
others are conjugates of these: a **half spectrum** is `[a // 2 + 1, b]`, in the order `(k1, k2)`. It has each distinct
frequency or its conjugate; the rows k1 = 0 and, for even a, a / 2 have both. For a length that is transformed in one
step, b is 1 and the order is the natural one.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.autograd import Function
from torch.library import custom_op

from bench import tensors

LARGEST_PRIME = 127
"""Up to this prime factor cuFFT has transforms of its own."""

COLUMNS = 32
"""Kernels take up to so many columns of a matrix `[a, b]` at a time."""

_AT_ONCE = 2**25  # numbers transformed at a time, unless one vector has more


def rfft(x: Tensor, norm: Literal["backward", "ortho"]) -> Tensor:
    """Transform real vectors `[..., d]` to their frequencies `[..., d // 2 + 1]`, complex, as `torch.fft.rfft` does.

    On a GPU this takes two steps where that helps. Each frequency is a sum or, with `ortho`, that times 1 / sqrt(d).
    """
    if not (tensors.on_gpu(x) and takes_two_steps(x.shape[-1])):
        plain: Tensor = torch.fft.rfft(x, norm=norm)
        return plain
    spectrum: Tensor = _Transform.apply(x, x.shape[-1], norm, False)
    return spectrum


def irfft(z: Tensor, d: int, norm: Literal["forward", "ortho"]) -> Tensor:
    """Transform frequencies `[..., d // 2 + 1]` back to real vectors `[..., d]`, as `torch.fft.irfft` does.

    On a GPU this takes two steps where that helps.
    """
    if not (tensors.on_gpu(z) and takes_two_steps(d)):
        plain: Tensor = torch.fft.irfft(z, n=d, norm=norm)
        return plain
    vectors: Tensor = _Transform.apply(z, d, norm, True)
    return vectors


def spectral_divergence(
    x: Tensor, other: Tensor, often: Tensor, eps: Tensor, norm: Literal["backward", "ortho"], *rest: bool
) -> Tensor:
    """The sum over frequencies of `often * a log((a + eps) / (b + eps))`, `[]`, float64, in one pass over a spectrum.

    Its gradient with respect to `x` is one more pass and an inverse transform.

    Args:
        x: the vector `[d]` whose magnitudes |rfft(x)| are `a`.
        other: `[d // 2 + 1]`, which is `b`.
        often: how often each frequency is counted, `[d // 2 + 1]`, the same for all clients.
        eps: a small number, `[]`.
        rest: whether `- a + b` is added to each logarithm's term (generalised KL), and whether the magnitudes are `a`;
            otherwise they are `b`, and `other` is `a`.
    """
    total: Tensor = _Divergence.apply(x, other, often, eps, norm, *rest)[0]
    return total


def takes_one_pass(x: Tensor) -> bool:
    """Whether `spectral_divergence` is to be taken: on a GPU, where memory's speed decides and bytes need not stay."""
    return tensors.on_gpu(x)


@functools.cache
def takes_two_steps(d: int) -> bool:
    """Whether this length has a prime factor that GPU libraries have no transform for, and is not itself a prime."""
    largest, p = d, 2
    while p * p <= largest:
        if largest % p:
            p += 1
        else:
            largest //= p
    return LARGEST_PRIME < largest < d


_ADJOINT_NORMS = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


class _Transform(Function):
    """A transform with a gradient.

    The transpose of `rfft` counts each frequency once, and `irfft` as often as it is among 0 to d - 1.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, d: int, norm: str, inverse: bool) -> Tensor:
        transformed: Tensor = _transform(numbers, d, norm, inverse)
        return transformed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, str, bool], output: Tensor) -> None:
        _, ctx.d, ctx.norm, ctx.inverse = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        often = torch.full((ctx.d // 2 + 1,), 2.0, dtype=g.dtype.to_real(), device=g.device)
        often[0] = 1.0
        if ctx.d % 2 == 0:
            often[-1] = 1.0
        g = g if ctx.inverse else g / often
        gradient = _Transform.apply(g, ctx.d, _ADJOINT_NORMS[ctx.norm], not ctx.inverse)
        return gradient * often if ctx.inverse else gradient, None, None, None


class _Divergence(Function):
    """Returns the divergence and its slopes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        total, slopes = _divergence(*inputs)
        return total, slopes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.d, ctx.norm = inputs[0].shape[-1], _ADJOINT_NORMS[inputs[4]]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, up: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(*ctx.saved_tensors, up, ctx.d, ctx.norm), None, None, None, None, None, None


@custom_op("pfleague::transform_in_two_steps", mutates_args=())
def _transform(numbers: Tensor, d: int, norm: str, inverse: bool) -> Tensor:
    flat, (a, b) = numbers.reshape(-1, numbers.shape[-1]).contiguous(), _factors(d)
    transformed: Tensor = _like_transformed(flat, d, norm, inverse)
    for part, place in _parts(flat, transformed):
        if inverse:
            half = part.new_empty(len(part), a // 2 + 1, b)
            _order(part, half, a, to_half=True)
            _inverse(half, torch.full_like(place[:, 0], _scale(d, norm)), place)
        else:
            _order(place, _half(part, norm), a, to_half=False)
    return transformed.view(*numbers.shape[:-1], -1)


@_transform.register_fake
def _like_transformed(numbers: Tensor, d: int, norm: str, inverse: bool) -> Tensor:
    dtype = numbers.dtype.to_real() if inverse else numbers.dtype.to_complex()
    return numbers.new_empty(*numbers.shape[:-1], d if inverse else d // 2 + 1, dtype=dtype)


@custom_op("pfleague::spectral_divergence", mutates_args=())
def _divergence(
    x: Tensor, other: Tensor, often: Tensor, eps: Tensor, norm: str, generalised: bool, first: bool
) -> tuple[Tensor, Tensor]:
    """The divergence of vectors `[..., d]`, with eps `[...]`, and its slopes for `_gradient`."""
    flat, (a, _) = x.reshape(-1, x.shape[-1]), _factors(x.shape[-1])
    given = flat, other.reshape(len(flat), -1), eps.reshape(-1).contiguous()
    sums, slopes = _like_divergence(*given[:2], often, given[2])
    for part, of_other, of_eps, place, total in _parts(*given, slopes, sums):
        total.copy_(_sums(_half(part, norm), a, of_other, often, of_eps, place, generalised, first))
    return sums.view(eps.shape), slopes.view(*x.shape[:-1], *slopes.shape[1:])


@_divergence.register_fake
def _like_divergence(x: Tensor, other: Tensor, often: Tensor, eps: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    a, b = _factors(x.shape[-1])
    slopes = x.new_empty(*x.shape[:-1], a // 2 + 1, b, dtype=x.dtype.to_complex())
    return eps.new_empty(eps.shape, dtype=torch.float64), slopes


@custom_op("pfleague::spectral_divergence_gradient", mutates_args=())
def _gradient(slopes: Tensor, up: Tensor, d: int, norm: str) -> Tensor:
    """The gradient with respect to vectors `[..., d]`, for the divergences' `up`, `[...]`."""
    up = up.to(slopes.dtype.to_real()) * _scale(d, norm)
    if slopes.shape[-1] == 1:
        plain: Tensor = torch.fft.irfft(slopes[..., 0] * up[..., None], n=d, norm="forward")
        return plain
    vectors = up.new_empty(up.numel(), d)
    for place, part, of_up in _parts(vectors, slopes.reshape(-1, *slopes.shape[-2:]), up.reshape(-1)):
        _inverse(part, of_up, place)
    return vectors.view(*up.shape, d)


@_gradient.register_fake
def _(slopes: Tensor, up: Tensor, d: int, norm: str) -> Tensor:
    return slopes.new_empty(*up.shape, d, dtype=slopes.dtype.to_real())


def _register_lanes(operation: CustomOpDef) -> None:
    """Let `vmap` call an operation once for all lanes, which come first in its tensors.

    The third one, of a divergence the counts, is the same for all.
    """

    def of_lanes(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        assert in_dims[2:3] in ((), (None,))
        lanes = list(args)
        for i, (t, dim) in enumerate(zip(args, in_dims, strict=True)):
            if dim is not None:
                lanes[i] = t.movedim(dim, 0)
            elif isinstance(t, Tensor) and i != 2:
                lanes[i] = t.expand(info.batch_size, *t.shape)
        return operation(*lanes), 0

    operation.register_vmap(of_lanes)


for _operation in (_transform, _divergence, _gradient):
    _register_lanes(_operation)


def _half(x: Tensor, norm: str) -> Tensor:
    """The half spectra of vectors `[lanes, d]`."""
    a, b = _factors(x.shape[-1])
    if b == 1:
        plain: Tensor = torch.fft.rfft(x, norm=norm)[..., None]
        return plain
    roots, scale = _roots(a, b, x.device, x.dtype.to_complex()), _scale(a * b, norm)
    if kernels := tensors.triton_kernels("bench.dft_kernels", x):
        turned = kernels.columns(x, a, b, roots, scale)
    else:
        turned = torch.fft.rfft(x.reshape(-1, a, b), dim=1) * _product(roots, b) * scale
    half: Tensor = torch.fft.fft(turned)
    return half


def _inverse(half: Tensor, up: Tensor, out: Tensor) -> None:
    """Write the vectors `[lanes, d]` of half spectra, as a sum over frequencies times `up`, `[lanes]`.

    Where a row has frequencies and their conjugates, only the real part counts of what the first step gives. So this is
    also the transpose of `_half`, if the numbers of all other rows are halved before.
    """
    a, b = _factors(out.shape[-1])
    roots = _roots(a, b, half.device, half.dtype)
    turned = torch.fft.ifft(half, norm="forward")
    if kernels := tensors.triton_kernels("bench.dft_kernels", turned, out):
        kernels.vectors(turned, up, a, b, roots, out)
    else:
        turned *= _product(roots, b).conj_physical() * up[:, None, None]
        turned.imag.masked_fill_(_frequencies(a, b, half.device)[2], 0)  # cuFFT expects it
        out.copy_(torch.fft.irfft(turned, n=a, dim=1, norm="forward").flatten(1))


def _scale(d: int, norm: str) -> float:
    return 1 / math.sqrt(d) if norm == "ortho" else 1.0


def _order(spectrum: Tensor, half: Tensor, a: int, *, to_half: bool) -> None:
    """Write natural frequencies `[lanes, d // 2 + 1]` to half spectra, or the other way round."""
    if kernels := tensors.triton_kernels("bench.dft_kernels", spectrum, half):
        kernels.order(spectrum, half, a, to_half=to_half)
        return
    if to_half:
        k, conjugate, _ = _frequencies(a, half.shape[-1], half.device)
        numbers, out = spectrum[:, k], half
    else:
        k = torch.arange(spectrum.shape[-1], device=half.device)
        conjugate = k % a > a // 2
        k = torch.where(conjugate, a * half.shape[-1] - k, k)
        numbers, out = half[:, k % a, k // a], spectrum
    out.copy_(torch.where(conjugate, numbers.conj_physical(), numbers))


def _sums(
    half: Tensor, a: int, other: Tensor, often: Tensor, eps: Tensor, slopes: Tensor, generalised: bool, first: bool
) -> Tensor:
    """The divergences of half spectra, `[lanes]`, float64; writes their slopes, halved for `_inverse`."""
    if kernels := tensors.triton_kernels("bench.dft_kernels", half, other):
        sums: Tensor = kernels.divergence(half, other, often, eps, slopes, a, generalised, first)
        return sums
    k, conjugate, both = _frequencies(a, half.shape[-1], half.device)
    count = torch.where(conjugate & both, 0.0, often[k])
    here, there, small = half.abs(), other[:, k], eps[:, None, None]
    p, q = (here, there) if first else (there, here)
    logarithm = torch.log((p + small) / (q + small))
    terms, slope = p * logarithm, logarithm + here / (here + small) if first else -there / (here + small)
    if generalised:
        terms, slope = terms - p + q, slope + (-1.0 if first else 1.0)
    share = count * torch.where(both, 1.0, 0.5) * slope / here
    torch.mul(half, torch.where(here > 0, share, 0.0), out=slopes)
    return (count * terms).sum((1, 2), dtype=torch.float64)


def _frequencies(a: int, b: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A half spectrum's frequencies up to d // 2, whether numbers are conjugates of these, and the rows with both."""
    k1 = torch.arange(a // 2 + 1, device=device)[:, None]
    k = k1 + a * torch.arange(b, device=device)
    return torch.minimum(k, a * b - k), k > a * b // 2, (k1 == 0) | (2 * k1 == a)


@functools.cache  # without a limit, as captured steps read them and hold addresses only
def _roots(a: int, b: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two factors of the roots `exp(-2 pi i k1 j2 / d)`: for multiples of `COLUMNS`, and for j2 less than that.

    They are `[b / COLUMNS, a // 2 + 1]` and `[COLUMNS, a // 2 + 1]`, some 2 MB for a ResNet-18.
    """
    angles = [np.outer(np.arange(*j2), np.arange(a // 2 + 1)) for j2 in ((0, b, COLUMNS), (COLUMNS,))]
    far, near = (torch.from_numpy(np.exp(-2j * np.pi / (a * b) * angle)).to(device, dtype) for angle in angles)
    return far, near


def _product(roots: tuple[Tensor, Tensor], b: int) -> Tensor:
    """The roots, `[k1, j2]`."""
    return (roots[0][:, None] * roots[1]).flatten(0, 1)[:b].T


def _parts(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of matrices, so many at a time as are transformed together."""
    rows = max(1, _AT_ONCE // matrices[0].shape[-1])
    return zip(*(torch.split(matrix, rows) for matrix in matrices), strict=True)


@functools.cache
def _factors(d: int) -> tuple[int, int]:
    """Two factors of a length, as near to each other as there are, the second one even if one is and else the smaller.

    A length that does not take two steps has the factors d and 1.
    """
    if not takes_two_steps(d):
        return d, 1
    small = next(b for b in range(math.isqrt(d), 0, -1) if d % b == 0)
    large = d // small
    return (small, large) if small % 2 > large % 2 else (large, small)
