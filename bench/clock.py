"""The simulated clock: what a program did becomes seconds. Profiles of devices and networks build on this."""

from dataclasses import dataclass

from bench.engine import Work
from bench.ledger import Size


@dataclass(frozen=True)
class Clock:
    """Every client alike.

    Attributes:
        samples_per_second: speed of training and inference.
        uplink, downlink: bytes per second.
        delays: by client, how many ticks later than the others its answer comes (tick trigger only).
    """

    samples_per_second: float = 1000.0
    uplink: float = 1e6
    downlink: float = 1e7
    delays: dict[int, int] | None = None

    def work(self, client: int, work: Work) -> float:
        """Seconds of computing."""
        return work.samples / self.samples_per_second

    def up(self, client: int, size: Size) -> float:
        """Seconds of an uplink."""
        return (size.main + size.buffers) / self.uplink

    def down(self, client: int, size: Size) -> float:
        """Seconds of a downlink."""
        return (size.main + size.buffers) / self.downlink

    def delay(self, client: int) -> int:
        """Ticks by which a client's answer is late."""
        return (self.delays or {}).get(client, 0)
