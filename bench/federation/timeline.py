"""Assign simulated times to what client programs did.

With start s_i and times G_i (generic training), U_i (up), P_i (personal training), D_i (down): wait-free, the server is
ready at A = max_j(s_j + G_j + U_j) and client i starts again at max(A + D_i, s_i + G_i + P_i); with `wait_free: off`
uploads leave at the end of the local work, A = max_j(s_j + G_j + P_j + U_j), and i starts again at A + D_i.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

from bench.engine.programs import ProgramRun, Sent, Work
from bench.federation.clock import Clock
from bench.federation.in_flight import InFlight
from bench.federation.traffic import Ledger, Size
from bench.method import Client, Message

TIMELINE_VERSIONS = 4
"""Server versions whose timeline is kept: enough to see the pattern, few enough to draw."""


class Span(NamedTuple):
    """A stretch of time in which a client or its connection did one thing.

    Attributes:
        kind: `download`, `training` (before the upload), `personal training` (after it in the program) or `upload`.
        start, end: simulated seconds.
    """

    client: int
    kind: str
    start: float
    end: float


class ComputedRound(NamedTuple):
    """A client's round, computed but not yet timed.

    Attributes:
        size: size of its download (None: it downloaded nothing).
        kind: the `Span.kind` of its training before an upload.
    """

    client: Client
    program: ProgramRun
    down: dict[str, Any]
    size: Size | None
    kind: str = "training"


class Timer:
    """Times the rounds of clients that start together.

    Attributes:
        free: by client, the time at which it has ended its local work.
        spans: the spans of the version under way, if it is one of the first `TIMELINE_VERSIONS`.
    """

    def __init__(self, clock: Clock, traffic: Ledger, clients: list[int], *, wait_free: bool) -> None:
        self.free = dict.fromkeys(clients, 0.0)
        self.spans: list[Span] = []
        self._clock = clock
        self._traffic = traffic
        self._wait_free = wait_free
        self._draws = True

    def time_rounds(self, computed: list[ComputedRound], version: int, now: float) -> list[InFlight]:
        """Time the rounds of clients that are sent a version now; an `Exchange` waits for the slowest of them."""
        self._draws = version < TIMELINE_VERSIONS
        in_flight = [InFlight(t.client, now, local=t.program.result) for t in computed]
        walks = [
            self._time_client(round_, flight, version, now) for round_, flight in zip(computed, in_flight, strict=True)
        ]
        waiting = {i: next(walk, None) for i, walk in enumerate(walks)}
        while arrivals := [arrival for arrival in waiting.values() if arrival is not None]:
            ready = max(arrivals)
            waiting = {i: _resume(walks[i], ready) for i, arrival in waiting.items() if arrival is not None}
        return in_flight

    def steps_until_broadcast(
        self, computed: list[ComputedRound], version: int, now: float, batch_size: int
    ) -> dict[int, int]:
        """Count the steps that each client can take between its upload and the next version's arrival, at least one.

        The version arrives after the slowest upload and a download of this round's size.
        """
        forecast = Timer(self._clock, Ledger(buffers_travel=self._traffic.buffers_travel), [], wait_free=True)
        forecast.free = dict(self.free)
        ready = max(
            arrival for flight in forecast.time_rounds(computed, version, now) for arrival, _ in flight.messages
        )
        steps = {}
        for round_ in computed:
            i = round_.client.id
            assert round_.size is not None, "a client that uploads has downloaded"
            next_model = ready + self._clock.down(i, round_.size)
            step_seconds = self._clock.work(i, Work(1, min(batch_size, round_.client.n_train)), version)
            steps[i] = max(1, int((next_model - forecast.free[i]) / step_seconds))
        return steps

    def _time_client(
        self, round_: ComputedRound, flight: InFlight, version: int, now: float
    ) -> Generator[float, float, None]:
        """Time a client's events.

        At an `Exchange` this yields the arrival time of the message and is sent the time at which the server is ready.
        """
        i = round_.client.id
        arrived = now if round_.size is None else self._span(i, "download", now, self._clock.down(i, round_.size))
        time, training, uploads = max(arrived, self.free[i]), round_.kind, []
        for event in round_.program.events:
            if isinstance(event, Work):
                time = self._span(i, training, time, self._clock.work(i, event, version))
            elif event.waits:
                ready = yield self._upload(i, event, time)
                time = self._span(i, "download", ready, self._clock.down(i, self._traffic.size(event.reply)))
            else:
                training = "personal training"
                uploads.append((time, event))
        arrival = now
        for moment, event in uploads:  # one after the other: messages of a client share its uplink
            arrival = self._upload(i, event, max(moment if self._wait_free else time, arrival))
            weight = round_.client.n_train if event.weight is None else event.weight
            flight.messages.append((arrival, Message(i, event.values, weight, version, base=round_.down)))
        self.free[i] = time
        flight.end = max(time, arrival)

    def _upload(self, client: int, event: Sent, time: float) -> float:
        """Return when a message sent at `time` arrives."""
        size = self._traffic.upload(event.values, event.encoded)
        return self._span(client, "upload", time, self._clock.up(client, size))

    def _span(self, client: int, kind: str, start: float, seconds: float) -> float:
        if self._draws:
            self.spans.append(Span(client, kind, start, start + seconds))
        return start + seconds


def _resume(walk: Generator[float, float, None], ready: float) -> float | None:
    try:
        return walk.send(ready)
    except StopIteration:
        return None
