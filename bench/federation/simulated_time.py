"""Simulated time: how long work and messages take (`Clock`), and when what client programs did happens (`Timer`).

With start s_i and times G_i (generic training), U_i (up), P_i (personal training), D_i (down): wait-free, the server is
ready at A = max_j(s_j + G_j + U_j) and client i starts again at max(A + D_i, s_i + G_i + P_i); with `wait_free: off`
uploads leave at the end of the local work, A = max_j(s_j + G_j + P_j + U_j), and i starts again at A + D_i.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.engine.programs import ProgramRun, Sent, Work
from bench.federation.traffic import Ledger, Size
from bench.method import Client, Message
from bench.params import Params
from bench.profiles import Amount, Profile, Spread
from bench.rng import generator

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


class Clock:
    """Seconds of computing and of messages, per client; all draws by (seed, client) or (seed, client, round).

    Args:
        archs: each client's architecture.
        delays: by client, the number of ticks by which its answer is later than the others' (tick trigger only); a
            tuple: in its first round, its second and so on, in turn.
    """

    def __init__(
        self, profile: Profile, seed: int, archs: Mapping[int, str], delays: Mapping[int, int | tuple[int, ...]]
    ) -> None:
        self._profile = profile
        self._seed = seed
        self._delays = delays
        self._speed = {i: self._drawn(profile.samples_per_second, i, "speed") for i in archs}
        self._uplink = {i: self._drawn(profile.uplink, i, "uplink") for i in archs}
        self._downlink = {i: self._drawn(profile.downlink, i, "downlink") for i in archs}
        for i, arch in archs.items():
            self._speed[i] *= profile.models.get(arch, 1.0)
        for i in self._slow(sorted(archs)):
            assert profile.slow_clients is not None
            self._speed[i] /= profile.slow_clients.factor

    def work(self, client: int, work: Work, round: int) -> float:
        """Seconds that a client's work takes in a round."""
        slow = self._profile.slow_rounds
        unlucky = slow is not None and self._chance("slow round", client, round) < slow.probability
        return work.samples / self._speed[client] * (slow.factor if slow is not None and unlucky else 1.0)

    def up(self, client: int, size: Size) -> float:
        """Seconds that a client's upload of this size takes."""
        return self._profile.latency + (size.main + size.buffers) / self._uplink[client]

    def down(self, client: int, size: Size) -> float:
        """Seconds that a client's download of this size takes."""
        return self._profile.latency + (size.main + size.buffers) / self._downlink[client]

    def drops_out(self, client: int, round: int) -> bool:
        """Whether a client takes no part in a round for which it was selected."""
        return self._profile.dropout > 0 and self._chance("dropout", client, round) < self._profile.dropout

    def delay(self, client: int, rounds: int) -> int:
        """Ticks by which a client's answer is late, in the round that it starts after `rounds` others."""
        delays = self._delays.get(client, 0)
        return delays[rounds % len(delays)] if isinstance(delays, tuple) else delays

    def _chance(self, what: str, client: int, round: int) -> float:
        return float(generator("clock", what, self._seed, client, round).random())

    def _drawn(self, amount: Amount, client: int, what: str) -> float:
        if isinstance(amount, Spread):
            rng = generator("clock", what, self._seed, client)
            return amount.median * float(rng.lognormal(sigma=amount.sigma))
        return amount[client % len(amount)] if isinstance(amount, tuple) else amount

    def _slow(self, clients: list[int]) -> list[int]:
        slow = self._profile.slow_clients
        if slow is None:
            return []
        drawn = generator("clock", "slow clients", self._seed).permutation(clients)[: round(slow.share * len(clients))]
        return sorted({int(i) for i in drawn} | (set(slow.clients) & set(clients)))


@dataclass
class InFlight:
    """A client's round whose work has been computed, but whose messages have not all arrived yet.

    Attributes:
        client: the client with the state after its round, which the server's side sees only from the time `end` on.
        end: simulated time at which the client has finished its local work and its last message has arrived.
        messages: (time of arrival, message) of the messages that are still under way, in order.
        local: the client's model right after local training, if its program returned one.
    """

    client: Client
    end: float
    messages: list[tuple[float, Message]] = field(default_factory=list)
    local: Params | None = None

    @property
    def next(self) -> tuple[float, int]:
        """Time of the round's next event, with the client's id to break ties."""
        return (self.messages[0][0] if self.messages else self.end), self.client.id

    def ended(self, now: float) -> bool:
        """Whether all events of the round are over."""
        return not self.messages and self.end <= now

    def plain(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores of the round."""
        return {
            "client": self.client.id,
            "state": self.client.state,
            "end": self.end,
            "messages": [[time, dict(vars(message))] for time, message in self.messages],
            "local": self.local,
        }

    @classmethod
    def of(cls, plain: dict[str, Any], client: Client) -> "InFlight":
        """Restore a round from the result of `plain`; `client` is the client that it names, without state."""
        client.state = plain["state"]
        messages = [(time, Message(**message)) for time, message in plain["messages"]]
        return cls(client, plain["end"], messages, plain["local"])


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
        waiting = {i: next(walk) for i, walk in enumerate(walks)}
        while arrivals := [arrival for arrival in waiting.values() if arrival is not None]:
            ready = max(arrivals)
            waiting = {i: walks[i].send(ready) for i, arrival in waiting.items() if arrival is not None}
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
    ) -> Generator[float | None, float, None]:
        """Time a client's events.

        At an `Exchange` this yields the arrival time of the message and is sent the time at which the server is ready;
        at the end it yields None.
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
        yield None

    def _upload(self, client: int, event: Sent, time: float) -> float:
        size = self._traffic.upload(event.values, event.encoded)
        return self._span(client, "upload", time, self._clock.up(client, size))

    def _span(self, client: int, kind: str, start: float, seconds: float) -> float:
        if self._draws:
            self.spans.append(Span(client, kind, start, start + seconds))
        return start + seconds
