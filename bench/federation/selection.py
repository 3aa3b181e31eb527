"""Which clients take part in a round, and which idle clients start next."""

from bench.federation.clock import Clock
from bench.federation.participants import ServerState
from bench.method import Method, Selection
from bench.rng import generator
from bench.settings import Settings


class Selector:
    """Selects clients.

    Attributes:
        count: how many clients take part in a round.
        start_draws: how many times idle clients have been drawn.
    """

    def __init__(
        self, selection: Selection, method: Method, server: ServerState, clock: Clock, settings: Settings
    ) -> None:
        self._selection = selection
        self._method = method
        self._server = server
        self._clock = clock
        self._seed = settings.seed
        self._ids = sorted(server.sizes)
        self.count = max(1, round(settings.participation * len(self._ids)))
        self.start_draws = 0

    def select(self, version: int) -> list[int]:
        """The clients of a round, without those that drop out."""
        ids = self._ids
        if self._method.everyone or self.count == len(ids):
            return self.present(ids, version)
        rng = generator("selection", self._seed, version)
        sizes = [self._server.sizes[i] for i in ids]
        return self.present(sorted(self._selection(ids, sizes, self.count, version, rng)), version)

    def present(self, ids: list[int], version: int) -> list[int]:
        """Those of some clients that do not drop out of a round."""
        return [i for i in ids if not self._clock.drops_out(i, version)]

    def pick_idle(self, room: int, busy: set[int], *, at_least_one: bool) -> list[int]:
        """The clients to start next.

        Args:
            room: at most so many.
            busy: clients that work, or have a message in the buffer: a client appears once per version.
            at_least_one: draw again while all that were drawn drop out.
        """
        idle = [i for i in self._ids if i not in busy]
        if room <= 0 or not idle:
            return []
        while True:
            rng = generator("start", self._seed, self.start_draws)
            picked = sorted(int(i) for i in rng.choice(idle, min(room, len(idle)), replace=False))
            present = self.present(picked, self.start_draws)
            self.start_draws += 1
            if present or not at_least_one:
                return present
