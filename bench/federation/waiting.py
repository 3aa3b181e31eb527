"""Messages that a server version waits for: by the method's trigger clients start, and uploads arrive in time."""

from bench.federation.client_rounds import Rounds
from bench.federation.clock import Clock
from bench.federation.in_flight import InFlight
from bench.federation.participants import Clients, ServerState
from bench.federation.selection import Selector
from bench.federation.timeline import Timer
from bench.federation.unselected import Unselected
from bench.method import Arrivals, Everyone, Message, Method, Tick
from bench.params import Params
from bench.settings import Settings


class Waiting:
    """Starts clients and collects the messages that close a version.

    Attributes:
        now: simulated seconds (ticks for the round clock).
        settled: time at which the clients of the last version had finished their local work.
        in_flight: rounds whose messages have not all arrived yet.
        rounds_started: by client, how many rounds it has started (round clock).
        local_models: by client, its model right after local training.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        server: ServerState,
        clients: Clients,
        *,
        selector: Selector,
        unselected: Unselected,
        timer: Timer,
        clock: Clock,
    ) -> None:
        self.now = 0.0
        self.settled = 0.0
        self.in_flight: list[InFlight] = []
        self.rounds_started: dict[int, int] = {}
        self.local_models: dict[int, Params] = {}
        self._participation = settings.participation
        self._method = method
        self._server = server
        self._clients = clients
        self._selector = selector
        self._unselected = unselected
        self._timer = timer
        self._clock = clock

    def messages(self, rounds: Rounds, version: int) -> list[Message]:
        """Wait for the messages that close a version.

        Args:
            rounds: where the rounds of clients are computed.
            version: number of the version.
        """
        match self._method.trigger:
            case Everyone():
                return self._everyone(rounds, version)
            case Arrivals(k, concurrency):
                return self._arrivals(rounds, version, k, concurrency)
            case Tick():
                return self._tick(rounds, version)

    def start(self, rounds: Rounds, ids: list[int], version: int, now: float) -> list[InFlight]:
        """Send a version to clients, have their rounds computed, and time them."""
        return self._timer.time_rounds(rounds.compute(ids, version, now), version, now)

    def meet_change(self) -> None:
        """Lose what clients that have left did not finish."""
        present = set(self._clients.ids)
        self.in_flight = [flight for flight in self.in_flight if flight.client.id in present]
        self.local_models = {i: w for i, w in self.local_models.items() if i in present}

    def _everyone(self, rounds: Rounds, version: int) -> list[Message]:
        """Run a round in which all selected clients answer, and return their messages.

        A client's work after its upload overlaps with the network and the server.
        """
        self._server.selected = self._selector.select(version)
        started = self.start(rounds, self._server.selected, version, self.now)
        self._commit(started)
        self.settled = max((f.end for f in started), default=self.now)
        trained = self._unselected.train(version)
        for flight in self._timer.time_rounds(trained, version, self.now):
            self.settled = max(self.settled, flight.end)
        arrived = [(time, m) for f in started for time, m in f.messages]
        self.now = max((time for time, _ in arrived), default=max((f.end for f in started), default=self.now))
        return [m for _, m in arrived]

    def _arrivals(self, rounds: Rounds, version: int, k: int, concurrency: int | None) -> list[Message]:
        """Wait for the next k messages and return them; a client that has finished makes room for another one."""
        inbox: list[Message] = []
        while len(inbox) < min(k, len(self._clients.ids)):
            working = {f.client.id for f in self.in_flight}
            room = (concurrency or self._selector.count) - len(self.in_flight)
            idle = self._selector.pick_idle(room, working | {m.client for m in inbox}, at_least_one=not working)
            self.in_flight += self.start(rounds, idle, version, self.now)
            flight = min(self.in_flight, key=lambda f: f.next)
            self.now = flight.next[0]
            if flight.messages:
                inbox.append(flight.messages.pop(0)[1])
            self._commit_finished()
        return inbox

    def _tick(self, rounds: Rounds, version: int) -> list[Message]:
        """Run one tick of the round clock: idle clients start, and the messages that are due arrive."""
        busy = {f.client.id for f in self.in_flight}
        self._server.selected = [i for i in self._selector.select(version) if i not in busy]
        flights = self.start(rounds, self._server.selected, version, self.now)
        self._timer.spans.clear()  # ticks are no seconds
        for flight in flights:
            earlier = self.rounds_started.get(flight.client.id, 0)
            self.rounds_started[flight.client.id] = earlier + 1
            due = self.now + 1 + self._clock.delay(flight.client.id, earlier)
            flight.end, flight.messages = due, [(due, m) for _, m in flight.messages]
            self.in_flight.append(flight)
        self.now += 1
        messages = [m for f in self.in_flight for time, m in f.messages if time <= self.now]
        for flight in self.in_flight:
            flight.messages = [(time, m) for time, m in flight.messages if time > self.now]
        self._commit_finished()
        return messages

    def _commit_finished(self) -> None:
        self._commit(sorted((f for f in self.in_flight if f.ended(self.now)), key=lambda f: f.client.id))
        self.in_flight = [f for f in self.in_flight if not f.ended(self.now)]

    def _commit(self, started: list[InFlight]) -> None:
        """Make the new states of clients visible."""
        copies = self._participation < 1 or not isinstance(self._method.trigger, Everyone)
        for flight in started:
            self._clients.commit(flight.client, copies=copies)
            if flight.local is not None:
                self.local_models[flight.client.id] = flight.local
