"""Bytes on the wire, counted at the message boundary from the tensors themselves.

Two conventions for downlinks: each distinct tensor once however many clients receive it (the count of the COMET paper),
and once per receiver. BatchNorm buffers are counted apart; plain numbers travel free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bench.params import Params


@dataclass(frozen=True)
class Size:
    """Bytes of weights and other tensors, and bytes of buffers."""

    main: int = 0
    buffers: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(self.main + other.main, self.buffers + other.buffers)


def _tensors(values: Any) -> list[tuple[Tensor, bool]]:
    """All tensors in nested values, with whether they are buffers."""
    if isinstance(values, Params):
        return [(values.weights, False), (values.buffers, True)]
    if isinstance(values, Tensor):
        return [(values, False)]
    if isinstance(values, Mapping):
        return [pair for value in values.values() for pair in _tensors(value)]
    if isinstance(values, list | tuple):
        return [pair for value in values for pair in _tensors(value)]
    return []


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


@dataclass
class Ledger:
    """The traffic of the version being computed.

    Attributes:
        buffers_travel: whether BatchNorm buffers are sent at all (not under the policy `local`).
    """

    buffers_travel: bool = True
    up: Size = Size()
    down_distinct: Size = Size()
    down_receivers: Size = Size()
    _seen: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def size(self, values: Any) -> Size:
        """Bytes of a message."""
        return self._size(_tensors(values))

    def upload(self, values: Any) -> Size:
        """Count an uplink, and say how large it is."""
        size = self.size(values)
        self.up += size
        return size

    def download(self, values: Any) -> Size:
        """Count a downlink to one receiver, and say how large it is."""
        tensors = _tensors(values)
        size = self._size(tensors)
        self.down_receivers += size
        new = []
        for tensor, is_buffer in tensors:
            at = _identity(tensor)
            # Seen tensors are kept, so that no new tensor can take over an address within a version.
            if tensor.numel() and at not in self._seen:
                self._seen[at] = tensor
                new.append((tensor, is_buffer))
        if new:
            self.down_distinct += self._size(new)
        return size

    def close(self, round: int, seconds: float, settled: float) -> dict[str, Any]:
        """The row of a version; counting starts again from zero.

        Args:
            round: the version's number, from 1.
            seconds: when the version was there.
            settled: when its clients had ended their local work as well.
        """
        row = {
            "round": round,
            "seconds": seconds,
            "settled": settled,
            "up": self.up.main,
            "down_distinct": self.down_distinct.main,
            "down_receivers": self.down_receivers.main,
            "up_buffers": self.up.buffers,
            "down_distinct_buffers": self.down_distinct.buffers,
            "down_receivers_buffers": self.down_receivers.buffers,
        }
        self.up = self.down_distinct = self.down_receivers = Size()
        self._seen = {}
        return row

    def _size(self, tensors: Iterable[tuple[Tensor, bool]]) -> Size:
        main = buffers = 0
        for tensor, is_buffer in tensors:
            if is_buffer:
                buffers += tensor.nbytes
            else:
                main += tensor.nbytes
        return Size(main, buffers if self.buffers_travel else 0)
