"""The Triton kernels of `bench/dft.py`: what is done around and between its transforms, each in one pass over memory.

Complex numbers are float32 in pairs, real and imaginary part; d = a * b. A program has a tile of a lane's matrix: some
k1 (or j1) and some k2 (or j2). Neighbouring threads get neighbours in a tile's last dimension, so tiles are transposed
where memory has another order. Lanes follow each other, so that what they share is still in the cache.

Two real columns of a vector `[a, b]` are transformed as the real and the imaginary part of one complex column, because
PyTorch copies the input of a transform to real numbers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

TILE = 1024
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
SIZES = ["lanes", "a", "b", "stride"]


@triton.jit
def _load(numbers, at, inside):
    """Real and imaginary parts of a tile."""
    pairs = numbers + 2 * at.to(tl.int64)[:, :, None] + tl.arange(0, 2)[None, None, :]
    return tl.split(tl.load(pairs, inside[:, :, None], 0.0))


@triton.jit
def _store(numbers, at, real, imaginary, inside):
    pairs = numbers + 2 * at.to(tl.int64)[:, :, None] + tl.arange(0, 2)[None, None, :]
    tl.store(pairs, tl.join(real, imaginary), inside[:, :, None])


@triton.jit
def _tile(lanes, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's lane, rows and columns, and how many tiles are before it in its rows."""
    lane, tile = (tl.program_id(0) % lanes).to(tl.int64), tl.program_id(0) // lanes
    before = tile % tl.cdiv(b, COLUMNS)
    rows, columns = tile // tl.cdiv(b, COLUMNS) * ROWS + tl.arange(0, ROWS), before * COLUMNS + tl.arange(0, COLUMNS)
    return lane, rows, columns, before


@triton.jit
def _turned(real, imaginary, first, within, k1, before, rows, COLUMNS: tl.constexpr):
    """Multiply a tile `[j2, k1]` with its roots."""
    inside = (k1 < rows)[None, :]
    re, im = _load(first, (before * rows + k1)[None, :], inside)
    of_re, of_im = _load(within, tl.arange(0, COLUMNS)[:, None] * rows + k1[None, :], inside)
    re, im = re * of_re - im * of_im, re * of_im + im * of_re
    return real * re - imaginary * im, real * im + imaginary * re


@triton.jit
def _interleaved(even, odd, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns `[j2, k1]` of pairs `[j2 // 2, k1]`."""
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 1)), (COLUMNS, ROWS))


@triton.jit
def _in_pairs(columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Invert `_interleaved`."""
    return tl.split(tl.permute(tl.reshape(columns, (COLUMNS // 2, 2, ROWS)), (0, 2, 1)))


@triton.jit(do_not_specialize=SIZES)
def columns_kernel(paired, first, within, out, scale, lanes, a, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The transforms `[k1, j2]` of columns, scaled and turned, from those of pairs, `[j2 // 2, a]`."""
    _, k1, j2, before = _tile(lanes, b, ROWS, COLUMNS)
    pair = before * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    inside, row = (2 * pair < b)[:, None] & (k1 <= a // 2)[None, :], pair[:, None] * a
    real, imaginary = _load(paired, row + k1[None, :], inside)
    re, im = _load(paired, row + tl.where(k1 == 0, 0, a - k1)[None, :], inside)  # of a real column, the conjugate
    even, odd = (real + re) * (scale / 2), (imaginary + im) * (scale / 2)
    even_im, odd_im = (imaginary - im) * (scale / 2), (re - real) * (scale / 2)
    real, imaginary = _interleaved(even, odd, ROWS, COLUMNS), _interleaved(even_im, odd_im, ROWS, COLUMNS)
    real, imaginary = _turned(real, imaginary, first, within, k1, before, a // 2 + 1, COLUMNS)
    inside = (k1 <= a // 2)[:, None] & (j2 < b)[None, :]
    _store(out, k1[:, None] * b + j2[None, :], tl.trans(real), tl.trans(imaginary), inside)


@triton.jit(do_not_specialize=SIZES)
def pairs_kernel(turned, first, within, up, out, lanes, a, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Turn numbers `[k1, j2]` back, multiply with the lane's factor, and make pairs of columns, `[j2 // 2, a]`."""
    lane, k1, j2, before = _tile(lanes, b, ROWS, COLUMNS)
    pair, pairs, rows = before * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2), (b + 1) // 2, a // 2 + 1
    inside, factor = (k1 < rows)[:, None] & (j2 < b)[None, :], tl.load(up + lane)
    real, imaginary = _load(turned, lane * (rows * b) + k1[:, None] * b + j2[None, :], inside)
    # Turning the conjugate is turning back.
    real, imaginary = tl.trans(real) * factor, tl.trans(-imaginary) * factor
    real, imaginary = _turned(real, imaginary, first, within, k1, before, rows, COLUMNS)
    once = ((k1 == 0) | (2 * k1 == a))[None, :]
    imaginary = tl.where(once, 0.0, -imaginary)
    even, odd = _in_pairs(real, ROWS, COLUMNS)
    even_im, odd_im = _in_pairs(imaginary, ROWS, COLUMNS)
    inside, row = (pair < pairs)[:, None] & (k1 < rows)[None, :], (lane * pairs + pair)[:, None] * a
    _store(out, row + k1[None, :], even - odd_im, even_im + odd, inside)
    _store(out, row + (a - k1)[None, :], even + odd_im, odd - even_im, inside & (once == 0))


@triton.jit(do_not_specialize=SIZES)
def vector_kernel(paired, out, lanes, a, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Vectors `[a, b]` of pairs of their columns, `[j2 // 2, a]`."""
    lane, j1, j2, before = _tile(lanes, b, ROWS, COLUMNS)
    pair, pairs = before * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2), (b + 1) // 2
    at = 2 * ((lane * pairs + pair)[:, None] * a + j1[None, :])[:, :, None] + tl.arange(0, 2)[None, None, :]
    numbers = tl.load(paired + at, ((pair < pairs)[:, None] & (j1 < a)[None, :])[:, :, None], 0.0)
    numbers = tl.reshape(tl.permute(numbers, (1, 0, 2)), (ROWS, COLUMNS))
    tl.store(out + lane * a * b + j1[:, None] * b + j2[None, :], numbers, (j1 < a)[:, None] & (j2 < b)[None, :])


@triton.jit
def _frequencies(k1, k2, a, b):
    """A tile's frequencies `[k2, k1]` up to d // 2, whether numbers are conjugates of theirs, and which come again."""
    k = k2[:, None] * a + k1[None, :]
    conjugate = k > a * b // 2
    return tl.minimum(k, a * b - k), conjugate, conjugate & ((k1 == 0) | (2 * k1 == a))[None, :]


@triton.jit(do_not_specialize=SIZES)
def order_kernel(spectrum, half, lanes, a, b, TO_HALF: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Put natural frequencies into the order of a half spectrum, or those into natural order."""
    lane, k1, k2, _ = _tile(lanes, b, ROWS, COLUMNS)
    k, conjugate, again = _frequencies(k1, k2, a, b)
    inside, at = (k1 <= a // 2)[:, None] & (k2 < b)[None, :], lane * (a * b // 2 + 1) + k
    at_half = lane * ((a // 2 + 1) * b) + k1[:, None] * b + k2[None, :]
    if TO_HALF:
        real, imaginary = _load(spectrum, at, tl.trans(inside))
        imaginary = tl.where(conjugate, -imaginary, imaginary)
        _store(half, at_half, tl.trans(real), tl.trans(imaginary), inside)
    else:
        real, imaginary = _load(half, at_half, inside)
        real, imaginary = tl.trans(real), tl.trans(imaginary)
        imaginary = tl.where(conjugate, -imaginary, imaginary)
        _store(spectrum, at, real, imaginary, tl.trans(inside) & (again == 0))


@triton.jit
def _magnitudes(real, imaginary):
    """The magnitude without squares that are too small or too large, as `torch.abs` has it."""
    a, b = tl.abs(real), tl.abs(imaginary)
    high, low = tl.maximum(a, b), tl.minimum(a, b)
    ratio = low / tl.where(high > 0, high, 1.0)
    return high * tl.sqrt(1 + ratio * ratio)


@triton.jit(do_not_specialize=SIZES)
def divergence_kernel(
    half, other, often, eps, slopes, sums, stride, lanes, a, b,
    GENERALISED: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sum of a tile's terms, and their slopes."""
    lane, k1, k2, _ = _tile(lanes, b, ROWS, COLUMNS)
    k, _, again = _frequencies(k1, k2, a, b)
    inside = (k1 <= a // 2)[:, None] & (k2 < b)[None, :]
    there = tl.trans(tl.load(other + lane * stride + k, tl.trans(inside), 0.0))
    count = tl.trans(tl.load(often + k, tl.trans(inside) & (again == 0), 0.0))
    at = lane * ((a // 2 + 1) * b) + k1[:, None] * b + k2[None, :]
    real, imaginary = _load(half, at, inside)
    here, small = _magnitudes(real, imaginary), tl.load(eps + lane)
    if FIRST:
        logarithm = tl.log((here + small) / (there + small))
        terms, slope = here * logarithm, logarithm + here / (here + small)
    else:
        terms, slope = there * tl.log((there + small) / (here + small)), -there / (here + small)
    if GENERALISED:
        terms += there - here if FIRST else here - there
        slope += -1.0 if FIRST else 1.0
    terms = tl.where(inside, count * terms, 0.0)
    tl.store(sums + tl.program_id(0), tl.sum(terms.to(tl.float64)))
    slope *= count * tl.where((k1 == 0) | (2 * k1 == a), 1.0, 0.5)[:, None]
    share = tl.where(here > 0, slope / tl.where(here > 0, here, 1.0), 0.0)
    _store(slopes, at, real * share, imaginary * share, inside)


def columns(x: Tensor, a: int, b: int, roots: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """Transform the columns of vectors `[lanes, a * b]` to `[lanes, a // 2 + 1, b]`, scaled and turned by the roots."""
    matrices = x.contiguous().view(-1, a, b)
    if b % 2 or matrices.storage_offset() % 2:
        matrices = functional.pad(matrices, (0, b % 2))
    out = x.new_empty(len(matrices), a // 2 + 1, b, dtype=torch.complex64)
    # One by one, because PyTorch would first copy all columns of several lanes side by side.
    for paired, place in zip(torch.view_as_complex(matrices.view(-1, a, (b + 1) // 2, 2)), out, strict=True):
        transformed = torch.fft.fft(paired, dim=0).T.contiguous()  # as it lies in a GPU's memory
        _launch(columns_kernel, 1, a // 2 + 1, b, transformed, *roots, place, scale, 1, a, b)
    return out


def vectors(turned: Tensor, up: Tensor, a: int, b: int, roots: tuple[Tensor, Tensor], out: Tensor) -> None:
    """Turn `[lanes, a // 2 + 1, b]` back, and write the vectors `[lanes, a * b]` of it, times each lane's `up`."""
    paired = turned.new_empty(len(turned), (b + 1) // 2, a)
    _launch(pairs_kernel, len(turned), a // 2 + 1, b, turned, *roots, up, paired, len(turned), a, b)
    _launch(vector_kernel, len(turned), a, b, torch.fft.ifft(paired, norm="forward"), out, len(turned), a, b)


def order(spectrum: Tensor, half: Tensor, a: int, *, to_half: bool) -> None:
    """Write natural frequencies `[lanes, d // 2 + 1]` to half spectra, or the other way round."""
    lanes, rows, b = half.shape
    _launch(order_kernel, lanes, rows, b, spectrum, half, lanes, a, b, to_half)


def divergence(half: Tensor, other: Tensor, often: Tensor, eps: Tensor, slopes: Tensor, a: int, *flags: bool) -> Tensor:
    """The sums of half spectra's terms, `[lanes]`, float64; the slopes are written."""
    lanes, rows, b = half.shape
    other = other if other.stride(1) == 1 else other.contiguous()
    sums = torch.empty(_tiles(rows, b)[0], lanes, dtype=torch.float64, device=half.device)
    given = half, other, often, eps, slopes, sums, other.stride(0), lanes, a, b
    _launch(divergence_kernel, lanes, rows, b, *given, *flags)
    return sums.sum(0)


def _launch(kernel: Any, lanes: int, rows: int, b: int, *given: Any) -> None:
    tiles, shape = _tiles(rows, b)
    reals = [torch.view_as_real(t) if isinstance(t, Tensor) and t.is_complex() else t for t in given]
    kernel[(lanes * tiles,)](*reals, *shape, **OPTIONS)


def _tiles(rows: int, b: int) -> tuple[int, tuple[int, int]]:
    """The number of a matrix's tiles, and their shape: with few columns if there are only few."""
    columns = min(32, triton.next_power_of_2(b))
    return triton.cdiv(rows, TILE // columns) * triton.cdiv(b, columns), (TILE // columns, columns)
