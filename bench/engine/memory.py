"""The memory that tensors take, followed from operation to operation, and what a process keeps of what it frees."""

import ctypes
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that counts the storages which operations in it make; memory within an operation is not counted.

    Attributes:
        live: bytes of the storages that still exist.
        peak: the largest number of bytes that existed at one time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in pytree.tree_leaves(results):
            if isinstance(result, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(result):
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()
        self._storages.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.live -= size


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
