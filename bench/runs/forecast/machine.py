"""Speed of this machine's computing: a second of measurements, kept in the user's cache folder."""

import contextlib
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn

from bench.engine.counting import Operation
from bench.engine.device import cpu_kernels
from bench.runs.forecast.kept import keep, read_kept

_VERSION = 2  # of what is measured
_CACHED = 2**20  # bytes; tensors of an operation that take less lie in a core's cache
_REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """Speeds of one core, or of a GPU, each the best of some tries, as other work can only slow them down.

    Attributes:
        product, convolution, transform: floating-point operations per second of products of matrices, convolutions
            and Fourier transforms; a multiply-add counts as two.
        memory, cache: bytes that are read and written per second, in tensors too large for a cache and in small ones.
        operation: seconds of an operation on a tensor of few numbers, called from Python.
    """

    product: float
    convolution: float
    transform: float
    memory: float
    cache: float
    operation: float

    def seconds(self, operation: Operation, times: int = 1) -> float:
        """Return how long an operation computes when its tensors are so many times as large, without its start."""
        moved = operation.moved * times
        busy = moved / (self.cache if moved < _CACHED else self.memory)
        if operation.flops:
            speed: float = getattr(self, operation.kind)
            busy = max(busy, operation.flops * times / speed)
        return busy


def this_machine(device: str) -> Machine:
    """Return the speeds of this machine: those kept from an earlier measurement by the same torch, else measured."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    key = " ".join([platform.node(), cpu_kernels(), gpu, f"torch {torch.__version__}", f"v{_VERSION}"])
    known = read_kept("machine")
    with contextlib.suppress(TypeError, KeyError):
        return Machine(**known[key])
    machine = measure(device)
    keep("machine", {**known, key: asdict(machine)})
    return machine


def measure(device: str) -> Machine:
    """Measure, on one core or on the GPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.device(device):
            return _measure(device, 8 if device == "cuda" else 1)
    finally:
        torch.set_num_threads(threads)


def _measure(device: str, scale: int) -> Machine:
    # This thread's CPU time, which other processes do not lengthen; a GPU's is the clock's.
    clock = time.perf_counter if device == "cuda" else time.thread_time

    def best(work: Callable[[], object], calls: int) -> float:
        tries = []
        for _ in range(_REPEATS):
            start = clock()
            for _ in range(calls):
                work()
            if device == "cuda":
                torch.cuda.synchronize()
            tries.append((clock() - start) / calls)
        return min(tries)

    size, images = 384 * scale, 10 * scale
    a, few, many = torch.ones(size, size), torch.ones(2**14), torch.ones(2**22 * scale)
    out, sums, few_sums = torch.empty_like(a), torch.empty_like(many), torch.empty_like(few)
    tiny, wave = torch.ones(4), torch.ones(9_690 * scale)
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    x = torch.ones(images, 64, 16, 16, requires_grad=True)

    def convolution() -> object:
        return torch.autograd.grad(layer(x).sum(), [x, layer.weight])

    best(lambda: torch.mm(a, a, out=out), 2)  # the first calls load libraries
    return Machine(
        product=2 * size**3 / best(lambda: torch.mm(a, a, out=out), 4),
        convolution=3 * 2 * images * 16 * 16 * 64 * 64 * 9 / best(convolution, 2),
        transform=5 * len(wave) * math.log2(len(wave)) / best(lambda: torch.fft.rfft(wave), 20),
        memory=3 * many.nbytes / best(lambda: torch.add(many, many, out=sums), 3),
        cache=3 * few.nbytes / best(lambda: torch.add(few, few, out=few_sums), 500),
        operation=best(lambda: torch.add(tiny, tiny), 2000),
    )
