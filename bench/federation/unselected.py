"""Personal training of the clients that were not selected, as far as a cell's policy lets them.

Source: Appendix F of the SCD paper, for `broadcast` and `cap`.
"""

from typing import Any

from bench.engine.batches import DrawAddress
from bench.engine.engine import Engine
from bench.engine.programs import ProgramRun, Work
from bench.federation.participants import Clients, ServerState
from bench.federation.selection import Selector
from bench.federation.timeline import ComputedRound
from bench.federation.traffic import Ledger
from bench.method import Method
from bench.settings import Settings


class Unselected:
    """Trains the clients that a round did not select.

    Attributes:
        downloads: by client, the last download that this training may start from.
        steps: by client, its steps of this training since it was last selected.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        server: ServerState,
        clients: Clients,
        selector: Selector,
        engine: Engine,
        traffic: Ledger,
    ) -> None:
        self._settings = settings
        self._method = method
        self._server = server
        self._clients = clients
        self._selector = selector
        self._engine = engine
        self._traffic = traffic
        self.downloads: dict[int, dict[str, Any]] = {}
        self.steps: dict[int, int] = {}

    def note_download(self, client: int, down: dict[str, Any]) -> None:
        """Keep what a selected client received, if it may train from it later."""
        if self._settings.unselected == "cap":
            self.downloads[client] = down

    def train(self, version: int) -> list[ComputedRound]:
        """Compute and commit the training of a version; the rounds, whose times nobody has set yet.

        Raises:
            ValueError: the method's `unselected_round` sends messages.
        """
        policy, limit = self._settings.unselected, self._settings.unselected_steps
        if policy == "idle":
            return []
        for i in self._server.selected:
            self.steps[i] = 0
        others = [i for i in self._selector.present(self._clients.ids, version) if i not in self._server.selected]
        if policy == "cap":
            others = [i for i in others if self.steps.get(i, limit) < limit]
        computed = []
        for i in others:
            size = None
            if policy == "broadcast":
                self.downloads[i] = self._clients.down(i)
                size = self._traffic.download(self.downloads[i])
            client = self._clients.copy(i)
            program = self._method.unselected_round(client, self.downloads[i])
            if program is not None:
                left = limit - self.steps.get(i, 0) if policy == "cap" else None
                running = ProgramRun(i, program, DrawAddress(self._settings.seed, version, i), limit=left)
                computed.append(ComputedRound(client, running, self.downloads[i], size, "personal training"))
        self._engine.run([round_.program for round_ in computed])
        for round_ in computed:
            work = [event for event in round_.program.events if isinstance(event, Work)]
            if len(work) < len(round_.program.events):
                raise ValueError(f"{type(self._method).__name__}.unselected_round sends messages: it must not")
            i, steps = round_.client.id, sum(w.steps for w in work)
            self.steps[i] = self.steps.get(i, 0) + steps
            self._clients.commit(round_.client, copies=True)
        return computed
