"""The kernels of a round, as PyTorch's profiler sees them: how long those of each kind take, and the longest ones."""

import functools
import re
import time
from collections.abc import Iterable
from unittest import mock

import cells
from measure import Found, Rows, wait
from torch.profiler import ProfilerActivity, profile

from bench.engine.backends import backends

KINDS = {
    "spectra": r"fft|^(columns|pairs|vector|order|divergence)_kernel",
    "SGD": r"sgd",
    "convolutions": r"conv(?!ert)|^of_input_kernel|^of_weight_kernel|fprop|dgrad|wgrad|im2col|col2im",
    "BatchNorm": r"^forward_kernel|^backward_kernel|batch_?norm|bn_[fb]w",
    "copies": r"^in_order_kernel|copy|memcpy|memset|aten::cat$|aten::clone",
    "scatter and index": r"scatter|index|gather",
    "other elementwise": r"elementwise|aten::(add|sub|mul|div|neg|pow|sqrt|exp|log|where|fill|threshold|relu|[gl][te])",
}
"""Kinds of kernels by patterns of their names on a GPU, or of the operations of a CPU. The first one that fits counts;
Triton's kernels are named after their functions in `bench/engine/lanes` and `bench/dft_kernels.py`."""
REST = "rest"


def profiles(device: str, tiny: bool) -> Rows:
    """A round of FedAvg and of SCD in bf16, recorded."""
    precision = "fp32" if tiny else "bf16"
    return {
        f"{method}, {precision}": functools.partial(profiled, device, tiny, method, precision)
        for method in ("fedavg", "scd")
    }


def profiled(device: str, tiny: bool, method: str, precision: str) -> Found:
    """Where the time of a method's second round goes; on a CPU the operations stand for kernels."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with mock.patch.object(backends, "_RECORD_AFTER", cells.AFTER[cells.RECORDED]):
        cell = cells.federation(device, method, tiny=tiny, precision=precision)
        start = time.perf_counter()
        cell.advance()
        wait(device)
        begin, before = time.perf_counter(), cell.engine.calls
        with profile(activities=[activity]) as seen:
            cell.advance()
            wait(device)
        stop = time.perf_counter()
    microseconds = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    kernels = [(one.key, getattr(one, microseconds) / 1e6, one.count) for one in seen.key_averages()]
    return {
        "seconds_of_warmup": begin - start,
        "seconds_of_the_round": stop - begin,
        "calls_of_steps": dict(cell.engine.calls - before),
        "notices": cell.warnings,
        **by_kind(kernel for kernel in kernels if kernel[1] > 0),
    }


def by_kind(kernels: Iterable[tuple[str, float, int]]) -> Found:
    """Sum the seconds and calls of kernels by kind, and name the twelve that took longest."""
    ordered = sorted(kernels, key=lambda kernel: -kernel[1])
    kinds: dict[str, Found] = {kind: {"seconds": 0.0, "calls": 0} for kind in (*KINDS, REST)}
    for name, seconds, calls in ordered:
        kinds[kind_of(name)]["seconds"] += seconds
        kinds[kind_of(name)]["calls"] += calls
    return {
        "seconds_of_kernels": sum(kind["seconds"] for kind in kinds.values()),
        "kinds": kinds,
        "longest": [{"name": name[:120], "seconds": seconds, "calls": calls} for name, seconds, calls in ordered[:12]],
    }


def kind_of(name: str) -> str:
    """The first kind whose pattern fits the name of a kernel."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), REST)
