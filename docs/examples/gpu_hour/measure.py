"""What all sections share: times, the kernels that ran, and the settings of the process that a row changes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Found = dict[str, Any]
Rows = dict[str, Callable[[], Found]]
"""The rows of a section by name: each measures one thing, and may change the settings of the process."""


def milliseconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Of one call: the median of `repeats` after two for warming up."""
    taken = []
    for k in range(repeats + 2):
        start = time.perf_counter()
        call()
        wait(device)
        if k > 1:
            taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def wait(device: str) -> None:
    """Until the device has done what it was told to."""
    if device == "cuda":
        torch.cuda.synchronize()


def kernels_of(call: Callable[[], Any], device: str) -> set[str]:
    """Names of what ran on the device, shortened."""
    if device != "cuda":
        return set()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        wait(device)
    return {one.key[:100] for one in seen.key_averages()}


@contextmanager
def settings_restored() -> Iterator[None]:
    """Put back what `bench.engine.device.make_deterministic` changes in the process."""
    cudnn: Any = torch.backends.cudnn  # unknown to stubs, like what follows
    deterministic: Any = torch.utils.deterministic
    places: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    precisions = [place.fp32_precision for place in places]
    before = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory, cudnn.benchmark
    try:
        yield
    finally:
        for place, precision in zip(places, precisions, strict=True):
            place.fp32_precision = precision
        torch.use_deterministic_algorithms(before[0])
        deterministic.fill_uninitialized_memory, cudnn.benchmark = before[1:]
