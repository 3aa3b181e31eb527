"""The discrete Fourier transform (DFT) of long real vectors, such as a network's weights.

GPU libraries transform a length with a large prime factor as a convolution of at least twice the size, for which they
need memory: some 17 GB for 64 vectors of ResNet-18's 11,173,962 = 2 * 3 * 397 * 4691 weights. Here a length a * b is
transformed in two steps, as b transforms of length a, a multiplication with roots of unity, and a transforms of length
b (Cooley and Tukey 1965). It is the same DFT but for rounding. Vectors are taken a few at a time, so that little memory
is needed.
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

_AT_ONCE = 2**25  # numbers transformed at a time, unless one vector has more


def rfft(x: Tensor, norm: Literal["backward", "ortho"]) -> Tensor:
    """Transform real vectors `[..., d]` to their frequencies `[..., d // 2 + 1]`, complex, as `torch.fft.rfft` does.

    On a GPU this takes two steps where that helps. Each frequency is a sum or, with `ortho`, that times 1 / sqrt(d).
    """
    if not (tensors.on_gpu(x) and takes_two_steps(x.shape[-1])):
        plain: Tensor = torch.fft.rfft(x, norm=norm)
        return plain
    spectrum: Tensor = _Rfft.apply(x, norm)
    return spectrum


def irfft(z: Tensor, d: int, norm: Literal["forward", "ortho"]) -> Tensor:
    """Transform frequencies `[..., d // 2 + 1]` back to real vectors `[..., d]`, as `torch.fft.irfft` does.

    On a GPU this takes two steps where that helps.
    """
    if not (tensors.on_gpu(z) and takes_two_steps(d)):
        plain: Tensor = torch.fft.irfft(z, n=d, norm=norm)
        return plain
    vectors: Tensor = _Irfft.apply(z, d, norm)
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


class _Rfft(Function):
    """Transform with a gradient: the transpose counts every frequency once."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, norm: str) -> Tensor:
        spectrum: Tensor = _rfft(x, norm)
        return spectrum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
        ctx.d, ctx.norm = inputs[0].shape[-1], inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Irfft.apply(g / _multiplicity(ctx.d, g), ctx.d, "forward" if ctx.norm == "backward" else "ortho"), None


class _Irfft(Function):
    """Inverse transform with a gradient: it counts every frequency as often as it is among 0 to d - 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, d: int, norm: str) -> Tensor:
        vectors: Tensor = _irfft(z, d, norm)
        return vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, str], output: Tensor) -> None:
        _, ctx.d, ctx.norm = inputs

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        z = _Rfft.apply(g, "backward" if ctx.norm == "forward" else "ortho")
        return z * _multiplicity(ctx.d, z), None, None


class _Divergence(Function):
    """Returns the divergence and the spectrum of x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, other: Tensor, often: Tensor, eps: Tensor, norm: Literal["backward", "ortho"], *rest: bool
    ) -> tuple[Tensor, Tensor]:
        z = rfft(x, norm)
        return _divergence(z, other, often, eps, *rest), z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, *others, norm, generalised, first = inputs
        ctx.d, ctx.norm, ctx.rest = x.shape[-1], norm, (generalised, first)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], *others)

    @staticmethod
    def backward(ctx: Any, up: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _slopes(*ctx.saved_tensors, up, ctx.d, *ctx.rest)
        of_x = irfft(slopes, ctx.d, "forward" if ctx.norm == "backward" else "ortho")
        return of_x, None, None, None, None, None, None


def _multiplicity(d: int, like: Tensor) -> Tensor:
    """Count how often each distinct frequency is among 0 to d - 1, itself or as its conjugate: `[d // 2 + 1]`."""
    counts = torch.full((d // 2 + 1,), 2.0, dtype=like.dtype.to_real(), device=like.device)
    counts[0] = 1.0
    if d % 2 == 0:
        counts[-1] = 1.0
    return counts


@custom_op("pfleague::rfft_in_two_steps", mutates_args=())
def _rfft(x: Tensor, norm: str) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    spectrum = flat.new_empty(len(flat), x.shape[-1] // 2 + 1, dtype=x.dtype.to_complex())
    for part, place in _parts(flat, spectrum):
        _forward(part, norm, place)
    return spectrum.view(*x.shape[:-1], -1)


@custom_op("pfleague::irfft_in_two_steps", mutates_args=())
def _irfft(z: Tensor, d: int, norm: str) -> Tensor:
    flat = z.reshape(-1, z.shape[-1])
    vectors = flat.new_empty(len(flat), d, dtype=z.dtype.to_real())
    for part, place in _parts(flat, vectors):
        place.copy_(_inverse(part, d, norm))
    return vectors.view(*z.shape[:-1], -1)


@_rfft.register_fake
def _(x: Tensor, norm: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2 + 1, dtype=x.dtype.to_complex())


@_irfft.register_fake
def _(z: Tensor, d: int, norm: str) -> Tensor:
    return z.new_empty(*z.shape[:-1], d, dtype=z.dtype.to_real())


@custom_op("pfleague::spectral_divergence", mutates_args=())
def _divergence(z: Tensor, other: Tensor, often: Tensor, eps: Tensor, generalised: bool, first: bool) -> Tensor:
    """The divergence of spectra `[..., d // 2 + 1]`, with eps `[...]`."""
    if kernels := tensors.triton_kernels("bench.dft_kernels", z, other):
        flat = _flat(z), _flat(other), often, eps.reshape(-1)
        sums: Tensor = kernels.divergence(*flat, generalised, first)
        return sums.view(eps.shape)
    a, b = (z.abs(), other) if first else (other, z.abs())
    terms = a * torch.log((a + eps[..., None]) / (b + eps[..., None]))
    return (often * (terms - a + b if generalised else terms)).sum(-1, dtype=torch.float64)


@custom_op("pfleague::spectral_divergence_slopes", mutates_args=())
def _slopes(
    z: Tensor, other: Tensor, often: Tensor, eps: Tensor, up: Tensor, d: int, generalised: bool, first: bool
) -> Tensor:
    """The gradient with respect to the spectrum, of which the inverse transform gives that with respect to x."""
    if kernels := tensors.triton_kernels("bench.dft_kernels", z, other):
        middle = d // 2 if d % 2 == 0 else 0
        flat = _flat(z), _flat(other), often, eps.reshape(-1), up.to(other.dtype).reshape(-1)
        slopes: Tensor = kernels.slopes(*flat, middle, generalised, first)
        return slopes.view(z.shape)
    a, small = z.abs(), eps[..., None]
    slope = torch.log((a + small) / (other + small)) + a / (a + small) if first else -other / (a + small)
    slope = slope + (-1.0 if first else 1.0) if generalised else slope
    often = often / _multiplicity(d, often)  # the inverse transform counts each frequency so often
    share = torch.where(a > 0, up.to(other.dtype)[..., None] * often * slope / a, 0.0)
    return z * share


@_divergence.register_fake
def _(z: Tensor, other: Tensor, often: Tensor, eps: Tensor, *_: bool) -> Tensor:
    return eps.new_empty(eps.shape, dtype=torch.float64)


@_slopes.register_fake
def _(z: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(z)


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


for _operation in (_rfft, _irfft, _divergence, _slopes):
    _register_lanes(_operation)


def _flat(spectra: Tensor) -> Tensor:
    return spectra.reshape(-1, spectra.shape[-1]).contiguous()


def _forward(x: Tensor, norm: str, spectrum: Tensor) -> None:
    """Transform vectors `[lanes, d]` in two steps and write their frequencies to `spectrum`.

    Entry `j1 * b + j2` of a vector adds to frequency `k2 * a + k1`. Only `k1` up to `a // 2` are computed, because the
    others are conjugates of these.
    """
    plan = _plan(x.shape[-1], x.device, x.dtype.to_complex())
    half = torch.fft.rfft(x.view(-1, plan.a, plan.b), dim=1, norm=norm).mul_(plan.roots)  # [lanes, k1, j2]
    whole: Tensor = torch.fft.fft(half, dim=2, norm=norm)  # [lanes, k1, k2]
    _gather(whole.flatten(1), plan.from_half, plan.sign, spectrum)


def _inverse(z: Tensor, d: int, norm: str) -> Tensor:
    """Invert `_forward`: the same steps in reverse order."""
    plan = _plan(d, z.device, z.dtype)
    half = z.new_empty(len(z), len(plan.to_half))
    _gather(z, plan.to_half, plan.sign_of_half, half)
    half = torch.fft.ifft(half.view(-1, plan.a // 2 + 1, plan.b), dim=2, norm=norm).mul_(plan.roots_back)
    vectors: Tensor = torch.fft.irfft(half, n=plan.a, dim=1, norm=norm)
    return vectors.flatten(1)


def _gather(source: Tensor, index: Tensor, sign: Tensor, out: Tensor) -> None:
    """Write the numbers `source[:, index]` to `out`, conjugated where the sign is -1."""
    if kernels := tensors.triton_kernels("bench.dft_kernels", source, out):
        kernels.gather(source, index, sign, out)
        return
    torch.index_select(source, 1, index, out=out)
    torch.view_as_real(out)[..., 1].mul_(sign)


class _Plan:
    """The factors, roots and indices that all vectors of one length share.

    Attributes:
        a, b: the two lengths.
        roots, roots_back: `[a // 2 + 1, b]`, `exp(-2 pi i k1 j2 / d)` and its conjugate.
        from_half, sign: `[d // 2 + 1]`, where a frequency or its conjugate is among the `(k1, k2)`, and the sign of its
            imaginary part.
        to_half, sign_of_half: `[(a // 2 + 1) * b]`, the reverse.
    """

    def __init__(self, d: int, device: torch.device, dtype: torch.dtype) -> None:
        self.a, self.b = a, b = _factors(d)
        k1, j2 = np.arange(a // 2 + 1)[:, None], np.arange(b)
        angles = -2j * np.pi * (k1 * j2)  # of a large network 16 bytes for each of millions: no second one beside it
        angles /= d
        self.roots = torch.from_numpy(np.exp(angles, out=angles)).to(device, dtype)
        self.roots_back = self.roots.conj_physical()
        del angles

        k = np.arange(d // 2 + 1)
        direct = k % a <= a // 2
        partner = np.where(direct, k, d - k)  # a frequency and d minus it are conjugates
        self.from_half, self.sign = _on(device, dtype, partner % a * b + partner // a, direct)

        frequency = (j2 * a + k1).reshape(-1)
        low = frequency <= d // 2
        self.to_half, self.sign_of_half = _on(device, dtype, np.where(low, frequency, d - frequency), low)


_plan = functools.lru_cache(maxsize=4)(_Plan)


def _on(device: torch.device, dtype: torch.dtype, index: Any, positive: Any) -> tuple[Tensor, Tensor]:
    """Put indices on a device, and signs that are 1 where `positive` and -1 elsewhere."""
    sign = torch.from_numpy(np.where(positive, 1.0, -1.0)).to(device, dtype.to_real())
    return torch.from_numpy(index.astype(np.int32)).to(device), sign


def _parts(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of matrices, so many at a time as are transformed together."""
    rows = max(1, _AT_ONCE // matrices[0].shape[-1])
    return zip(*(torch.split(matrix, rows) for matrix in matrices), strict=True)


def _factors(d: int) -> tuple[int, int]:
    """Two factors of a length, as near to each other as there are, the smaller one first."""
    a = next(a for a in range(math.isqrt(d), 0, -1) if d % a == 0)
    return a, d // a
