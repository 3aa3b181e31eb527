"""The device that a cell is computed on: repeatable algorithms, kernels of the CPU, memory, threads, and lanes."""

import concurrent.futures
import contextlib
import ctypes
import functools
import os
import platform
import queue
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from bench.places import cache_folder

T = TypeVar("T")

_SETS = (
    "avx", "avx2", "fma3", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16",
    "amx_fp16", "avx10_1", "avx10_2", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""Instruction sets by which PyTorch, oneDNN and MKL choose, by torch's names for them."""
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")
"""Environment variables that hold oneDNN and MKL to older ones, or MKL to its strict mode (`bench/__init__.py`)."""


def make_deterministic(device: torch.device, precision: str) -> None:
    """Make torch deterministic: it must not choose algorithms by timing, and results must not depend on threads.

    Every cell sets it, by hand or in a worker: torch's own threads beside the engine's would also halve its speed.
    """
    torch.set_num_threads(1)
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "triton"))  # compiled kernels, for later processes
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


def cpu_kernels() -> str:
    """Describe in words what decides which kernels run on this CPU.

    That is the architecture, the level of PyTorch's own kernels, the maker (MKL looks at it), the instruction sets,
    the size of the second cache (convolutions and matrix products are cut into blocks by it), limits that the
    environment sets, and whether a client's bits depend on its lane, as where MKL was used before `bench` was imported.
    """
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # PyTorch of 2026
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability(), *str(has.get("cpu_name", "")).split()[:1]]
    words += [name for name in _SETS if has.get(name)]
    if cache := has.get("l2_cache_size"):
        words.append(f"L2={cache}")
    words += [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    return " ".join(words if _lanes_agree() else [*words, "lanes-differ"])


@functools.cache
def _lanes_agree() -> bool:
    """Whether five equal lanes, which lie an odd number of floats apart, have equal products."""
    lanes = torch.linspace(-1, 1, 371).square().repeat(5, 1)[:, :370].view(5, 10, 37)
    products = lanes @ lanes.transpose(1, 2)
    return bool((products == products[0]).all())


def keep_freed_memory(largest: int) -> None:
    """Have this process keep the memory that it frees from now on, where the C library is glibc.

    glibc gives large pieces back to the kernel, which hands them out again page by page and zeroed: every vector of a
    large model costs that at every step. Call it once the data is loaded: what is free by then goes back.

    Args:
        largest: bytes of the largest piece that comes and goes at every step. Still larger ones, which come and go
            once in a round, go back if they can be told apart: kept, they would leave holes that nothing fits in.
    """
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"):
        return
    ctypes.CDLL(None).malloc_trim(0)
    trim_threshold, mmap_threshold, mmap_max, arena_max = -1, -3, -4, -8  # names of mallopt(3)
    most = 32 * 2**20  # what mallopt takes for `mmap_threshold`
    # In an arena of its own, which is small, a thread would have to fetch large pieces from the kernel after all. All
    # are set every time (0 arenas: as many as glibc likes): the cell before in this process may have had another model.
    settings = (most, 2**16, 0) if largest < most else (most, 0, 1)
    parameters = zip((mmap_threshold, mmap_max, arena_max), settings, strict=True)
    for parameter, value in ((trim_threshold, 2**31 - 1), *parameters):
        ctypes.CDLL(None).mallopt(parameter, value)


def side_by_side(threads: int, jobs: Iterable[Callable[[], T]], count: int) -> list[T]:
    """Run `count` jobs, `threads` at a time, and return their results in order.

    The calling thread is one of the threads. A generator may make the jobs: the first jobs run while it makes others.
    """
    results: dict[int, T] = {}
    waiting: queue.SimpleQueue[tuple[int, Callable[[], T]] | None] = queue.SimpleQueue()
    others: list[concurrent.futures.Future[None]] = []

    def work() -> None:
        while numbered := waiting.get():
            i, job = numbered
            results[i] = job()

    try:
        for numbered in enumerate(jobs):
            waiting.put(numbered)
            if len(others) < min(threads, count) - 1:
                others.append(_workers(threads - 1).submit(work))
        for _ in range(1 + len(others)):
            waiting.put(None)
        work()
    finally:
        with contextlib.suppress(queue.Empty):  # after an error nobody begins another job
            while True:
                waiting.get_nowait()
        for _ in others:
            waiting.put(None)
        concurrent.futures.wait(others)
    for other in others:
        other.result()
    return [results[i] for i in range(count)]


@functools.cache
def _workers(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads that stay, each with as many intra-op threads as the process has.

    A new thread starts with torch's default number of them, and the bytes depend on it.
    """
    return concurrent.futures.ThreadPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
    )
