"""The Triton kernels of `bench/dft.py`: what surrounds a transform in one pass over memory.

Complex numbers are float32 in pairs, real and imaginary part; spectra are `[lanes, frequencies]`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit(do_not_specialize=["numbers", "results"])
def gather_kernel(source, index, sign, out, numbers, results, BLOCK: tl.constexpr):
    """Numbers of the source in another order, some of them conjugated: their sign is -1."""
    lane, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, part = i < results, tl.arange(0, 2)
    at = 2 * (lane * numbers + tl.load(index + i, inside, 0))
    number = tl.load(source + at[:, None] + part[None, :], inside[:, None], 0.0)
    number = tl.where(part[None, :] == 1, number * tl.load(sign + i, inside, 0.0)[:, None], number)
    at = 2 * (lane * results + i)
    tl.store(out + at[:, None] + part[None, :], number, inside[:, None])


@triton.jit
def _magnitudes(real, imaginary):
    """The magnitude without squares that are too small or too large, as `torch.abs` has it."""
    a, b = tl.abs(real), tl.abs(imaginary)
    high, low = tl.maximum(a, b), tl.minimum(a, b)
    ratio = low / tl.where(high > 0, high, 1.0)
    return high * tl.sqrt(1 + ratio * ratio)


@triton.jit(do_not_specialize=["numbers"])
def divergence_kernel(
    z, other, often, eps, sums, numbers, GENERALISED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of a block of a lane's terms."""
    lane, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at = i < numbers, lane * numbers + i
    pairs = tl.load(z + 2 * at[:, None] + tl.arange(0, 2)[None, :], inside[:, None], 0.0)
    real, imaginary = tl.split(pairs)
    here, there, small = _magnitudes(real, imaginary), tl.load(other + at, inside, 0.0), tl.load(eps + lane)
    if FIRST:
        a, b = here, there
    else:
        a, b = there, here
    terms = a * tl.log((a + small) / (b + small))
    if GENERALISED:
        terms = terms - a + b
    terms = tl.where(inside, tl.load(often + i, inside, 0.0) * terms, 0.0)
    tl.store(sums + lane * tl.num_programs(0) + tl.program_id(0), tl.sum(terms.to(tl.float64), 0))


@triton.jit(do_not_specialize=["numbers", "middle"])
def slopes_kernel(
    z, other, often, eps, up, out, numbers, middle,
    GENERALISED: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient with respect to the spectrum, ready for the inverse transform."""
    lane, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at, part = i < numbers, lane * numbers + i, tl.arange(0, 2)
    pairs = tl.load(z + 2 * at[:, None] + part[None, :], inside[:, None], 0.0)
    real, imaginary = tl.split(pairs)
    here, there, small = _magnitudes(real, imaginary), tl.load(other + at, inside, 0.0), tl.load(eps + lane)
    slope = -there / (here + small)
    if FIRST:
        slope = tl.log((here + small) / (there + small)) + here / (here + small)
    if GENERALISED:
        slope = slope - 1 if FIRST else slope + 1
    once = (i == 0) | (i == middle)
    slope *= tl.load(up + lane) * tl.load(often + i, inside, 0.0) * tl.where(once, 1.0, 0.5)
    share = tl.where(here > 0, slope / tl.where(here > 0, here, 1.0), 0.0)
    tl.store(out + 2 * at[:, None] + part[None, :], pairs * share[:, None], inside[:, None])


def gather(source: Tensor, index: Tensor, sign: Tensor, out: Tensor) -> None:
    """Write `source[:, index]` to `out`, conjugated where the sign is -1."""
    grid = triton.cdiv(out.shape[1], BLOCK), len(out)
    pairs = [torch.view_as_real(t) for t in (source, out)]
    gather_kernel[grid](pairs[0], index, sign, pairs[1], source.shape[1], out.shape[1], BLOCK, **OPTIONS)


def divergence(z: Tensor, other: Tensor, often: Tensor, eps: Tensor, *flags: bool) -> Tensor:
    """The sums of the lanes, `[lanes]`, float64."""
    lanes, numbers = z.shape
    blocks = triton.cdiv(numbers, BLOCK)
    sums = torch.empty(lanes, blocks, dtype=torch.float64, device=z.device)
    divergence_kernel[blocks, lanes](torch.view_as_real(z), other, often, eps, sums, numbers, *flags, BLOCK, **OPTIONS)
    return sums.sum(1)


def slopes(
    z: Tensor, other: Tensor, often: Tensor, eps: Tensor, up: Tensor, middle: int, generalised: bool, first: bool
) -> Tensor:
    """The gradient with respect to the spectrum; see `bench.dft`."""
    lanes, numbers = z.shape
    out = torch.empty_like(z)
    slopes_kernel[triton.cdiv(numbers, BLOCK), lanes](
        torch.view_as_real(z), other, often, eps, up, torch.view_as_real(out), numbers, middle, generalised, first,
        BLOCK, **OPTIONS,
    )  # fmt: skip
    return out
