"""Which kernels a CPU runs: two CPUs for which this differs may round the same sum differently."""

import os
import platform

import torch

_SETS = (
    "avx", "avx2", "fma3", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16",
    "amx_fp16", "avx10_1", "avx10_2", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""Instruction sets by which PyTorch, oneDNN and MKL choose, by torch's names for them."""
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")
"""Environment variables that hold oneDNN and MKL to older ones."""


def cpu_kernels() -> str:
    """What decides which kernels run on this CPU, in words.

    That is the architecture, the level of PyTorch's own kernels, the maker (MKL looks at it), the instruction sets,
    the size of the second cache (convolutions and matrix products are cut into blocks by it), and limits that the
    environment sets.
    """
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # PyTorch of 2026
    words = [platform.machine(), torch.backends.cpu.get_cpu_capability(), *str(has.get("cpu_name", "")).split()[:1]]
    words += [name for name in _SETS if has.get(name)]
    if cache := has.get("l2_cache_size"):
        words.append(f"L2={cache}")
    return " ".join([*words, *(f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name))])
