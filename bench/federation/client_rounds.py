"""A round on the clients' side: who is selected, what each downloads, its program, and its messages' way to the server.

Clients that are not selected may train their personalized models meanwhile (`Unselected`).
"""

from functools import partial
from typing import Any, Protocol

from bench.engine.batches import DrawAddress
from bench.engine.programs import Budget, ProgramRun, Sent, Work
from bench.errors import UserError
from bench.federation.cell import CellContext
from bench.federation.participants import as_model, buffers_of, with_kept
from bench.federation.simulated_time import ComputedRound
from bench.method import Message
from bench.rng import generator
from bench.settings import POISSON


class Selector:
    """Selects the clients that take part in a round, and the idle clients that start next.

    Attributes:
        count: number of clients that take part in a round, on average under the selection `poisson`.
        start_draws: number of times that idle clients have been drawn.
    """

    def __init__(self, cell: CellContext) -> None:
        self._cell = cell
        self.start_draws = 0
        self.meet_change()

    def meet_change(self) -> None:
        """Select from now on among those that are there now."""
        self._ids = [i for i, size in sorted(self._cell.server.sizes.items()) if size]
        self.count = self._cell.settings.selected(len(self._ids))

    @property
    def rate(self) -> float:
        """Share of the clients there are now that take part in a round."""
        return 1.0 if self._cell.method.everyone else self.count / max(1, len(self._ids))

    def select(self, version: int) -> list[int]:
        """Select the clients of a round, without those that drop out.

        Raises:
            UserError: the selection is not of as many different clients as are due.
        """
        ids, settings = self._ids, self._cell.settings
        if self._cell.method.everyone or self.count == len(ids):
            return self.present(ids, version)
        rng = generator("selection", settings.seed, version)
        sizes = [self._cell.server.sizes[i] for i in ids]
        returned = list(self._cell.selection(ids, sizes, self.count, version, rng))
        different = set(returned)
        selected = [i for i in ids if i in different]
        due = len(selected) if settings.selection == POISSON else self.count
        if not len(selected) == len(returned) == due:
            raise UserError(
                f"`selection: {settings.selection}` returned {len(returned)} ids in round {version + 1}, which name "
                f"{len(selected)} of the {len(ids)} clients that it got: return {self.count} different ids of these"
            )
        return self.present(selected, version)

    def present(self, ids: list[int], version: int) -> list[int]:
        """Leave out of the clients `ids` those that drop out of a round."""
        return [i for i in ids if not self._cell.clock.drops_out(i, version)]

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
            rng = generator("start", self._cell.settings.seed, self.start_draws)
            picked = sorted(int(i) for i in rng.choice(idle, min(room, len(idle)), replace=False))
            present = self.present(picked, self.start_draws)
            self.start_draws += 1
            if present or not at_least_one:
                return present


class Rounds(Protocol):
    """Computes the rounds of clients: in this process (`ClientRounds`), or by the clients themselves."""

    def compute(self, ids: list[int], version: int, now: float) -> list[ComputedRound]:
        """Send a version to clients and return what their rounds did.

        Args:
            ids: the clients that start.
            version: number of the server version that they download.
            now: simulated time at which they start.
        """


class ClientRounds:
    """Computes the rounds of clients side by side with the engine of this process."""

    def __init__(self, cell: CellContext, unselected: "Unselected") -> None:
        self._cell = cell
        self._unselected = unselected

    def compute(self, ids: list[int], version: int, now: float) -> list[ComputedRound]:
        """Compute the rounds of clients that start together: broadcast, programs, channel and lies."""
        cell, computed = self._cell, [self._begin(i, version, len(ids)) for i in ids]
        budget: Budget | None = None
        if cell.settings.pm_until_broadcast:
            budget = partial(cell.timer.steps_until_broadcast, computed, version, now, cell.settings.batch_size)
        reply = self._reply if cell.forger is None else cell.forger.replier(computed, version, self._reply)
        cell.engine.run([round_.program for round_ in computed], reply, budget)
        if cell.forger is not None:
            cell.forger.forge_uploads(computed, version)
        for part in (cell.channel, cell.forger):
            if part is not None and computed:
                part.sent.check()
        for round_ in computed:
            if round_.program.result is not None:
                as_model(round_.program.result, f"{type(cell.method).__name__}.client_round")
            if cell.clients.local_buffers:
                for event in round_.program.events:
                    if isinstance(event, Sent):
                        cell.clients.keep_buffers(round_.client, event.values)
        return computed

    def _begin(self, i: int, version: int, clients: int) -> ComputedRound:
        cell, down = self._cell, self._cell.clients.down(i)
        self._unselected.note_download(i, down)
        client = cell.clients.copy(i)
        program = cell.method.client_round(client, down)
        passage = cell.channel.passage(client, down, version, clients) if cell.channel else None
        running = ProgramRun(i, program, DrawAddress(cell.settings.seed, version, i), passage=passage)
        return ComputedRound(client, running, down, cell.traffic.download(down))

    def _reply(self, messages: list[Message]) -> dict[int, Any]:
        cell = self._cell
        messages.sort(key=lambda m: m.client)
        replies = cell.method.reply(cell.server, messages)
        for message in messages:
            cell.traffic.download(replies[message.client])
        if cell.clients.local_buffers:
            return {m.client: with_kept(replies[m.client], buffers_of(m.values)) for m in messages}
        return replies


class Unselected:
    """Trains the personalized models of clients that a round did not select, as far as the cell's policy lets them.

    Source: Appendix F of the SCD paper, for `broadcast` and `cap`.

    Attributes:
        downloads: by client, the last download that this training may start from.
        steps: by client, its steps of this training since it was last selected.
    """

    def __init__(self, cell: CellContext, selector: Selector) -> None:
        self._cell = cell
        self._selector = selector
        self.downloads: dict[int, dict[str, Any]] = {}
        self.steps: dict[int, int] = {}

    def note_download(self, client: int, down: dict[str, Any]) -> None:
        """Keep what a selected client received, if it may train from it later."""
        if self._cell.settings.unselected == "cap":
            self.downloads[client] = down

    def train(self, version: int) -> list[ComputedRound]:
        """Compute and commit the training of a version; the rounds, whose times nobody has set yet.

        Raises:
            ValueError: the method's `unselected_round` sends messages.
        """
        cell, policy, limit = self._cell, self._cell.settings.unselected, self._cell.settings.unselected_steps
        if policy == "idle":
            return []
        for i in cell.server.selected:
            self.steps[i] = 0
        others = [i for i in self._selector.present(cell.clients.ids, version) if i not in cell.server.selected]
        if policy == "cap":
            others = [i for i in others if self.steps.get(i, limit) < limit]
        computed = []
        for i in others:
            size = None
            if policy == "broadcast":
                self.downloads[i] = cell.clients.down(i)
                size = cell.traffic.download(self.downloads[i])
            client = cell.clients.copy(i)
            program = cell.method.unselected_round(client, self.downloads[i])
            if program is not None:
                left = limit - self.steps.get(i, 0) if policy == "cap" else None
                running = ProgramRun(i, program, DrawAddress(cell.settings.seed, version, i), limit=left)
                computed.append(ComputedRound(client, running, self.downloads[i], size, "personal training"))
        cell.engine.run([round_.program for round_ in computed])
        for round_ in computed:
            work = [event for event in round_.program.events if isinstance(event, Work)]
            if len(work) < len(round_.program.events):
                raise ValueError(f"{type(cell.method).__name__}.unselected_round sends messages: it must not")
            i, steps = round_.client.id, sum(w.steps for w in work)
            self.steps[i] = self.steps.get(i, 0) + steps
            cell.clients.commit(round_.client, copies=True)
        return computed
