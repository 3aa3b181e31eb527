"""Selection of the clients that take part in a round, and of the idle clients that start next."""

from bench.errors import UserError
from bench.federation.clock import Clock
from bench.federation.participants import ServerState
from bench.method import Method, Selection
from bench.rng import generator
from bench.settings import POISSON, Settings


class Selector:
    """Selects clients.

    Attributes:
        count: number of clients that take part in a round, on average under the selection `poisson`.
        start_draws: number of times that idle clients have been drawn.
    """

    def __init__(
        self, selection: Selection, method: Method, server: ServerState, clock: Clock, settings: Settings
    ) -> None:
        self._selection = selection
        self._method = method
        self._server = server
        self._clock = clock
        self._name = settings.selection
        self._seed = settings.seed
        self._settings = settings
        self.start_draws = 0
        self.meet_change()

    def meet_change(self) -> None:
        """Select from now on among those that are there now."""
        self._ids = [i for i, size in sorted(self._server.sizes.items()) if size]
        self.count = self._settings.selected(len(self._ids))

    @property
    def rate(self) -> float:
        """Share of the clients there are now that take part in a round."""
        return 1.0 if self._method.everyone else self.count / max(1, len(self._ids))

    def select(self, version: int) -> list[int]:
        """Select the clients of a round, without those that drop out.

        Raises:
            UserError: the selection is not of as many different clients as are due.
        """
        ids = self._ids
        if self._method.everyone or self.count == len(ids):
            return self.present(ids, version)
        rng = generator("selection", self._seed, version)
        sizes = [self._server.sizes[i] for i in ids]
        returned = list(self._selection(ids, sizes, self.count, version, rng))
        different = set(returned)
        selected = [i for i in ids if i in different]
        due = len(selected) if self._name == POISSON else self.count
        if not len(selected) == len(returned) == due:
            raise UserError(
                f"`selection: {self._name}` returned {len(returned)} ids in round {version + 1}, which name "
                f"{len(selected)} of the {len(ids)} clients that it got: return {self.count} different ids of these"
            )
        return self.present(selected, version)

    def present(self, ids: list[int], version: int) -> list[int]:
        """Leave out of the clients `ids` those that drop out of a round."""
        return [i for i in ids if not self._clock.drops_out(i, version)]

    def pick_idle(self, room: int, busy: set[int], *, at_least_one: bool) -> list[int]:
        """Draw the clients that start next.

        Args:
            room: largest number of clients.
            busy: clients that work, or have a message in the buffer: a client appears once per version.
            at_least_one: draw again while all drawn clients drop out.
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
