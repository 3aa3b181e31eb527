"""The rounds of clients, computed here: what each downloads, its program in the ordinary engine, and its messages."""

from functools import partial
from typing import Any, Protocol

from bench.engine.batches import DrawAddress
from bench.engine.engine import Engine
from bench.engine.programs import Budget, ProgramRun, Sent
from bench.federation.attacks import Forger
from bench.federation.channel import Channel
from bench.federation.participants import Clients, ServerState, as_model, buffers_of, with_kept
from bench.federation.timeline import ComputedRound, Timer
from bench.federation.traffic import Ledger
from bench.federation.unselected import Unselected
from bench.method import Message, Method
from bench.settings import Settings


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
    """Computes the rounds of clients side by side with the engine of this process.

    Args:
        settings: settings of the cell.
        channel, forger: what messages go through, and who forges them; None where the cell has none.
        traffic: counts what is downloaded.
        timer: knows how long a client may go on after its upload.
        unselected: keeps downloads for later training.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        server: ServerState,
        clients: Clients,
        engine: Engine,
        *,
        channel: Channel | None,
        forger: Forger | None,
        traffic: Ledger,
        timer: Timer,
        unselected: Unselected,
    ) -> None:
        self._settings = settings
        self._method = method
        self._server = server
        self._clients = clients
        self._engine = engine
        self._channel = channel
        self._forger = forger
        self._traffic = traffic
        self._timer = timer
        self._unselected = unselected

    def compute(self, ids: list[int], version: int, now: float) -> list[ComputedRound]:
        """Compute the rounds of clients that start together."""
        settings, computed = self._settings, list[ComputedRound]()
        for i in ids:
            down = self._clients.down(i)
            self._unselected.note_download(i, down)
            client = self._clients.copy(i)
            program = self._method.client_round(client, down)
            passage = self._channel.passage(client, down, version, len(ids)) if self._channel else None
            running = ProgramRun(i, program, DrawAddress(settings.seed, version, i), passage=passage)
            computed.append(ComputedRound(client, running, down, self._traffic.download(down)))
        budget: Budget | None = None
        if settings.pm_until_broadcast:
            budget = partial(self._timer.steps_until_broadcast, computed, version, now, settings.batch_size)
        reply = self._reply if self._forger is None else self._forger.replier(computed, version, self._reply)
        self._engine.run([round_.program for round_ in computed], reply, budget)
        if self._forger is not None:
            self._forger.forge_uploads(computed, version)
        for part in (self._channel, self._forger):
            if part is not None and computed:
                part.check()
                part.note_rest()
        for round_ in computed:
            if round_.program.result is not None:
                as_model(round_.program.result, f"{type(self._method).__name__}.client_round")
            if self._clients.local_buffers:
                self._keep_buffers(round_)
        return computed

    def _keep_buffers(self, round_: ComputedRound) -> None:
        for event in round_.program.events:
            if isinstance(event, Sent):
                self._clients.keep_buffers(round_.client, event.values)

    def _reply(self, messages: list[Message]) -> dict[int, Any]:
        messages.sort(key=lambda m: m.client)
        replies = self._method.reply(self._server, messages)
        for message in messages:
            self._traffic.download(replies[message.client])
        if self._clients.local_buffers:
            return {m.client: with_kept(replies[m.client], buffers_of(m.values)) for m in messages}
        return replies
