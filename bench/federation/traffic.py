"""Bytes on the wire, counted at the message boundary from the tensors themselves.

Two conventions for downlinks: each distinct tensor once however many clients receive it (the count of the COMET paper),
and once per receiver. BatchNorm buffers are counted apart. Plain numbers, texts and names of values travel free:
a method needs few of them beside its tensors, and `bench check-method` refuses messages that have more.
"""

from typing import Any, NamedTuple

from torch import Tensor

from bench.params import Params, memory_of, parts


class Size(NamedTuple):
    """Bytes of weights and other tensors, and bytes of buffers."""

    main: int = 0
    buffers: int = 0


def _sum(sizes: list[Size]) -> Size:
    return Size(sum(size.main for size in sizes), sum(size.buffers for size in sizes))


class Ledger:
    """The traffic of the version being computed.

    Attributes:
        buffers_travel: whether BatchNorm buffers are sent at all (not under the policy `local`).
    """

    def __init__(self, *, buffers_travel: bool = True) -> None:
        self.buffers_travel = buffers_travel
        self._clear()

    def _clear(self) -> None:
        self._up: list[Size] = []
        self._down: list[Size] = []
        self._distinct: list[Size] = []
        # Received tensors are kept until the version ends; otherwise a new tensor at the address of a freed one would
        # count as received.
        self._seen: dict[tuple[Any, ...], Tensor] = {}

    def size(self, values: Any) -> Size:
        """Count the bytes of a message."""
        return _sum([self._size(part) for part in parts(values)])

    def upload(self, values: Any, encoded: int | None = None) -> Size:
        """Count an uplink and return its size.

        Args:
            values: what arrives.
            encoded: bytes that were sent of it, but for running statistics, where a channel encodes it.
        """
        size = self.size(values)
        if encoded is not None:
            size = size._replace(main=encoded)
        self._up.append(size)
        return size

    def download(self, values: Any) -> Size:
        """Count a downlink to one receiver and return its size."""
        size = _sum([self._received(part) for part in parts(values)])
        self._down.append(size)
        return size

    def _size(self, part: Any) -> Size:
        if isinstance(part, Params):
            return Size(part.weights.nbytes, part.buffers.nbytes if self.buffers_travel else 0)
        return Size(part.nbytes)

    def _received(self, part: Any) -> Size:
        size = self._size(part)
        if isinstance(part, Params):
            self._count(part.weights, Size(size.main))
            self._count(part.buffers, Size(0, size.buffers))
        else:
            self._count(part, size)
        return size

    def _count(self, tensor: Tensor, size: Size) -> None:
        at = memory_of(tensor)
        if tensor.numel() and at not in self._seen:
            self._seen[at] = tensor
            self._distinct.append(size)

    def close(self, round: int, seconds: float, settled: float) -> dict[str, Any]:
        """Return the row of a version and start counting again from zero.

        Args:
            round: the version's number, from 1.
            seconds: simulated time at which the version was complete.
            settled: simulated time at which its clients had ended their local work, too.
        """
        up, distinct, receivers = (_sum(sizes) for sizes in (self._up, self._distinct, self._down))
        self._clear()
        return {
            "round": round,
            "seconds": seconds,
            "settled": settled,
            "up": up.main,
            "down_distinct": distinct.main,
            "down_receivers": receivers.main,
            "up_buffers": up.buffers,
            "down_distinct_buffers": distinct.buffers,
            "down_receivers_buffers": receivers.buffers,
        }
