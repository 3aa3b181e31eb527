"""Kernels that a CPU runs: two CPUs with different ones may round the same sum differently."""

import functools
import os
import platform
import re

import torch

_SETS = (
    "avx", "avx2", "fma3", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16",
    "amx_fp16", "avx10_1", "avx10_2", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""Instruction sets by which PyTorch, oneDNN and MKL choose, by torch's names for them."""
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")
"""Environment variables that hold oneDNN and MKL to older ones, or MKL to its strict mode (`bench/__init__.py`)."""

_LEVELS = ("DEFAULT", "NO AVX", "AVX2", "AVX512", "VSX", "Z VECTOR", "SVE128", "SVE256", "SVE")
"""Levels of PyTorch's own kernels, by its names for them."""
_NEEDS = {"AVX2": "avx2", "AVX512": "avx512_f"}
"""The instruction set without which PyTorch never chooses a level."""
_ARM = ("sve", "sve2", "bf16", "i8mm")
_WORDS = re.compile(
    rf"(?P<machine>x86_64|AMD64|i[3-6]86|aarch64|arm64|armv\w+|ppc64(?:le)?|s390x|riscv64|loongarch64)"
    rf" (?P<level>{'|'.join(_LEVELS)})"
    rf"(?: (?!(?:{'|'.join(_SETS)})(?: |$))[A-Za-z0-9][\w().@-]*)?"  # the maker
    rf"(?P<sets>{''.join(f'(?: {name})?' for name in _SETS)})"
    rf"(?: L2=[1-9]\d{{3,8}})?{''.join(f'(?: {name}=[^ ]+)?' for name in _LIMITS)}(?: lanes-differ)?"
)


def can_be_kernels(words: str) -> bool:
    """Whether `cpu_kernels` can describe some CPU in these words: its words in order, and sets that go together."""
    if not (match := _WORDS.fullmatch(words)):
        return False
    sets, intel = match["sets"].split(), match["machine"] in ("x86_64", "AMD64")
    foreign = [name for name in sets if (name in _ARM) == intel]
    lacks = sets and (needed := _NEEDS.get(match["level"])) and needed not in sets
    alone = any(name.startswith("avx512_") for name in sets) and not {"avx2", "avx512_f"} <= set(sets)
    return not (foreign or lacks or alone or (match["level"] in _NEEDS and not intel))


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
