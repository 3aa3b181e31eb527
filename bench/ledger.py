"""Bytes on the wire, counted at the message boundary from the tensors themselves.

Two conventions for downlinks: each distinct tensor once however many clients receive it (the count of the COMET paper),
and once per receiver. BatchNorm buffers are counted apart; plain numbers travel free.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from bench.params import Params


class Size(NamedTuple):
    """Bytes of weights and other tensors, and bytes of buffers."""

    main: int = 0
    buffers: int = 0

    def plus(self, other: "Size") -> "Size":
        """Both together."""
        return Size(self.main + other.main, self.buffers + other.buffers)


_NOTHING = Size()


def _entries(values: Any) -> Iterable[Any]:
    """What nested values consist of."""
    if isinstance(values, dict):
        return values.values()
    return values if isinstance(values, list | tuple) else ()


def _sum(sizes: list[Size]) -> Size:
    if len(sizes) == 1:  # most messages have one entry
        return sizes[0]
    return Size(sum(size.main for size in sizes), sum(size.buffers for size in sizes))


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


@dataclass
class Ledger:
    """The traffic of the version being computed.

    Attributes:
        buffers_travel: whether BatchNorm buffers are sent at all (not under the policy `local`).
    """

    buffers_travel: bool = True
    up: Size = _NOTHING
    down_distinct: Size = _NOTHING
    down_receivers: Size = _NOTHING
    # What was received is kept, so that nothing new can take over an address within a version.
    _seen: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    _models: dict[int, tuple[Params, Size]] = field(default_factory=dict)

    def size(self, values: Any) -> Size:
        """Bytes of a message."""
        if isinstance(values, Params):
            return Size(values.weights.nbytes, values.buffers.nbytes if self.buffers_travel else 0)
        if isinstance(values, Tensor):
            return Size(values.nbytes)
        return _sum([self.size(value) for value in _entries(values)])

    def upload(self, values: Any) -> Size:
        """Count an uplink, and say how large it is."""
        size = self.size(values)
        self.up = self.up.plus(size)
        return size

    def download(self, values: Any) -> Size:
        """Count a downlink to one receiver, and say how large it is."""
        size = self._receive(values)
        self.down_receivers = self.down_receivers.plus(size)
        return size

    def _receive(self, values: Any) -> Size:
        if isinstance(values, Params):
            if id(values) not in self._models:
                size = self.size(values)
                self._count(values.weights, Size(size.main))
                self._count(values.buffers, Size(0, size.buffers))
                self._models[id(values)] = values, size
            return self._models[id(values)][1]
        if isinstance(values, Tensor):
            size = self.size(values)
            self._count(values, size)
            return size
        return _sum([self._receive(value) for value in _entries(values)])

    def _count(self, tensor: Tensor, size: Size) -> None:
        """Count a tensor that nobody has received before in this version."""
        at = _identity(tensor)
        if tensor.numel() and at not in self._seen:
            self._seen[at] = tensor
            self.down_distinct = self.down_distinct.plus(size)

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
        self.up = self.down_distinct = self.down_receivers = _NOTHING
        self._seen, self._models = {}, {}
        return row
