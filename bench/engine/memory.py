"""The memory that tensors take, followed from operation to operation."""

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
