"""Properties of a device: repeatable algorithms, the number of clients per cohort, and whether memory ran out."""

import os
from typing import Any

import torch

from bench.errors import UserError

_CACHE = 2**20  # bytes of weights, of what a core's second cache holds
_LEAST, _MOST = 2, 5  # lanes on a CPU; more than that gain nothing, and stand idle where clients are unequal


def gpu_memory_ran_out(error: Exception) -> bool:
    """Return whether an error means that memory ran out, so a smaller cohort might fit; cuFFT has its own message."""
    return isinstance(error, torch.OutOfMemoryError) or "CUFFT_ALLOC_FAILED" in str(error)


def lanes_on(device: torch.device, size: int) -> int:
    """Clients per call of a cohort for models of so many bytes: on a CPU as many as a core's cache holds."""
    return min(_MOST, max(_LEAST, _CACHE // max(1, size))) if device.type == "cpu" else 64


def make_deterministic(device: torch.device, precision: str) -> None:
    """Make torch deterministic: it must not choose algorithms by timing, and results must not depend on threads."""
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    deterministic: Any = torch.utils.deterministic  # unknown to stubs, like what follows
    deterministic.fill_uninitialized_memory = False  # else every new tensor is first filled with NaN
    torch.backends.cudnn.benchmark = False
    set_fp32_precision(precision)


def set_fp32_precision(precision: str) -> None:
    """Set whether a GPU multiplies float32 as TF32, in products and in convolutions (torch's default there)."""
    mode = "tf32" if precision == "tf32" else "ieee"
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    for place in (cuda.matmul, cudnn.conv, cudnn.rnn):
        place.fp32_precision = mode


def check_lane_kernels(device: str, precision: str) -> None:
    """Refuse the lane kernels where they would not be used.

    Raises:
        UserError: the device is a CPU, or networks do not compute in bfloat16.
    """
    if device == "cpu":
        raise UserError("--lane-kernels: they are for a GPU; leave the option out")
    if precision != "bf16":
        raise UserError(f"--lane-kernels: they need `precision: bf16` in the grid, and it has {precision}")
