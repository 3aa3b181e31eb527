"""The Triton kernel of `bench/engine/lanes/sgd.py`.

A gradient of a convolution's weights lies in memory as `[lanes, filters, taps, channels]`, as the kernels of the
convolutions write it, and often in bfloat16. It is read as it is, although the weights are in the order
`[filters, channels, taps]`: a block of weights has several channels of each tap, so that what lies side by side in
memory is read by the same block.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""A product and a sum round separately, as in PyTorch's operations one after the other."""


@triton.jit(do_not_specialize=["d", "start", "size"])
def sgd_kernel(
    w, velocity, g, more, lr, new_w, new_velocity, d, start, size, momentum, decay,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, MORE: tl.constexpr, DECAYS: tl.constexpr, MOVES: tl.constexpr,
    NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update the `size` weights from `start` on of a lane's `d`, with a piece of the gradient `g [lanes, size]`."""
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, at = i < size, lane * d + start + i
    within = i % (CHANNELS * TAPS)
    from_ = lane * size + (i - within) + within % TAPS * CHANNELS + within // TAPS
    slopes = tl.load(g + from_, inside, 0.0).to(tl.float32)
    if MORE:
        slopes = slopes + tl.load(more + at, inside, 0.0)
    weights = tl.load(w + at, inside, 0.0)
    if DECAYS:
        slopes = slopes + decay * weights
    if MOVES:
        moved = slopes + momentum * tl.load(velocity + at, inside, 0.0)
        tl.store(new_velocity + at, moved, inside)
        slopes = slopes + momentum * moved if NESTEROV else moved
    tl.store(new_w + at, weights - tl.load(lr + lane) * slopes, inside)


def sgd(
    state: Sequence[Tensor],
    gradient: Sequence[Tensor],
    more: Sequence[Tensor],
    lr: Tensor,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> list[Tensor]:
    """Take the step of `bench.engine.lanes.sgd`, with one launch for each piece of the gradient."""
    vectors = [t.contiguous() for t in state]
    new = [torch.empty_like(t) for t in vectors]
    lanes, d = vectors[0].shape
    flags = bool(more), bool(decay), len(state) == 2, nesterov
    other = more[0].contiguous() if more else vectors[0]
    start = 0
    for piece in gradient:
        g, channels, taps = _as_in_memory(piece)
        size = g.numel() // lanes
        grid = triton.cdiv(size, BLOCK), lanes
        numbers = d, start, size, momentum, decay
        sgd_kernel[grid](
            vectors[0],
            vectors[-1],
            g,
            other,
            lr.contiguous(),
            new[0],
            new[-1],
            *numbers,
            channels,
            taps,
            *flags,
            BLOCK,
            **OPTIONS,
        )
        start += size
    return new


def _as_in_memory(piece: Tensor) -> tuple[Tensor, int, int]:
    """A piece as it lies in memory, and the numbers of channels and taps that are interchanged there."""
    if piece.dim() == 5 and not piece.is_contiguous():
        stored = piece.permute(0, 1, 3, 4, 2)
        if stored.is_contiguous():
            return stored, piece.shape[2], piece.shape[3] * piece.shape[4]
    return piece.contiguous(), 1, 1
