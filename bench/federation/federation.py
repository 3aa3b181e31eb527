"""The federation loop: one event loop for synchronous, wait-free and asynchronous methods.

A client's program runs to its end from what the client downloaded; its messages reach the server, and its state
changes, at their simulated times. A server version closes by the method's trigger: all selected clients have answered,
K messages have arrived, or the round clock ticks.

A round reads from top to bottom: `advance` has the server select clients and broadcast (`_everyone`, `_arrivals`,
`_tick`), their rounds computed and sent through the channel (`start`), and their messages aggregated (`_aggregate`);
`evaluate` scores the version.
"""

import math
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from bench.data import Dataset, Partition
from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.device import cpu_kernels
from bench.engine.device_data import SERVER
from bench.engine.lanes.convolution import way
from bench.engine.programs import Work
from bench.federation.cell import CellContext, Execution
from bench.federation.cell_data import load_all
from bench.federation.client_rounds import ClientRounds, Rounds, Selector, Unselected
from bench.federation.evaluation import Evaluator
from bench.federation.participants import training_sizes
from bench.federation.privacy import client_statement, sample_statement
from bench.federation.scores import Evaluation, failure
from bench.federation.setup import warnings
from bench.federation.simulated_time import InFlight, Span
from bench.federation.snapshot import Packer, unpack
from bench.method import Arrivals, Everyone, Message, Tick
from bench.params import Params
from bench.settings import Settings

__all__ = ["Diverged", "Evaluation", "Federation"]


class Federation(CellContext):
    """One training run. `Federation.of` makes it from a cell's settings alone.

    Attributes:
        version: number of server versions done.
        now: simulated seconds (ticks for the round clock).
        settled: time at which the clients of the last version had finished their local work.
        in_flight: rounds whose messages have not all arrived yet.
        rounds_started: by client, how many rounds it has started (round clock).
        local_models: by client, its model right after local training.
        ledger: one row of traffic per version.
        work: steps and samples of the last version, of the clients and of the server.
        warnings: messages to the user about this run, one line each.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        dataset: Dataset,
        partition: Partition,
        public: Dataset | None,
        **execution: Unpack[Execution],
    ) -> None:
        super().__init__(settings, dataset=dataset, partition=partition, public=public, **execution)
        self.version = 0
        self.now = self.settled = 0.0
        self.in_flight: list[InFlight] = []
        self.rounds_started: dict[int, int] = {}
        self.local_models: dict[int, Params] = {}
        self.selector = Selector(self)
        self.unselected = Unselected(self, self.selector)
        self.client_rounds: Rounds = ClientRounds(self, self.unselected)
        self.evaluator = Evaluator(self)
        self.ledger: list[dict[str, Any]] = []
        self.work: dict[str, int] = {}
        self.warnings = warnings(self.method, settings, len(self.clients.ids), str(self.device_data.device))

    @classmethod
    def of(cls, settings: Settings, data_root: Path | str = "data", **execution: Unpack[Execution]) -> "Federation":
        """Make the federation of a cell before its first round, with its data, partition, shifts and public samples.

        It sets for the whole process what it sets in a worker of a run, so that both are equally fast and round alike:
        one thread of torch's (the engine has its own), deterministic kernels, and memory that is kept.

        Args:
            settings: settings of the cell, for instance of a loaded grid.
            data_root: folder of the data files.
            execution: the way it is computed, as in the constructor.

        Raises:
            UserError: the data are missing or damaged, or a setting does not fit the method, the data or the device.
        """
        dataset, partition, public = load_all(settings, Path(data_root))
        return cls(settings, dataset=dataset, partition=partition, public=public, **execution)

    # -- one server version -------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Run to the next server version.

        Raises:
            Diverged: a weight is not finite.
        """
        self.enter(self.version + 1)
        self.server.round = self.version
        self.timer.spans.clear()
        earlier = dict(self.engine.done)
        if self.channel is not None:
            self.channel.begin(self.version, self.selector.count)
        try:
            match self.method.trigger:
                case Everyone():
                    inbox = self._everyone()
                case Arrivals(k, concurrency):
                    inbox = self._arrivals(k, concurrency)
                case Tick():
                    inbox = self._tick()
            self._aggregate(inbox)
        except Diverged as error:
            self.engine.check_recordings(math.inf)
            raise Diverged(error.what, self.version) from None
        if self.channel is not None:
            self.channel.close(self.selector.rate)
        self._collect_notices()
        self.version += 1
        self.work = _work_since(earlier, self.engine.done)
        self.ledger.append(self.traffic.close(self.version, self.now, max(self.now, self.settled)))

    def enter(self, round: int) -> None:
        """Let the clients' data be those of a round, from 1: changes before it have happened.

        What a client that leaves has not finished is lost; its state is kept, should it come back.
        """
        stage = self.device_data.changes.stage(round)
        if stage == self.device_data.stage:
            return
        self.device_data.enter(stage)
        self.server.sizes = training_sizes(self.device_data, self.server.sizes)
        for part in (self.clients, self.selector, self.evaluator):
            part.meet_change()
        present = set(self.clients.ids)
        self.in_flight = [flight for flight in self.in_flight if flight.client.id in present]
        self.local_models = {i: w for i, w in self.local_models.items() if i in present}

    def _everyone(self) -> list[Message]:
        """Run a round in which all selected clients answer, and return their messages.

        A client's work after its upload overlaps with the network and the server.
        """
        self.server.selected = self.selector.select(self.version)
        started = self.start(self.server.selected)
        self._commit(started)
        self.settled = max((f.end for f in started), default=self.now)
        trained = self.unselected.train(self.version)
        for flight in self.timer.time_rounds(trained, self.version, self.now):
            self.settled = max(self.settled, flight.end)
        arrived = [(time, m) for f in started for time, m in f.messages]
        self.now = max((time for time, _ in arrived), default=max((f.end for f in started), default=self.now))
        return [m for _, m in arrived]

    def _arrivals(self, k: int, concurrency: int | None) -> list[Message]:
        """Wait for the next k messages and return them; a client that has finished makes room for another one."""
        inbox: list[Message] = []
        while len(inbox) < min(k, len(self.clients.ids)):
            working = {f.client.id for f in self.in_flight}
            room = (concurrency or self.selector.count) - len(self.in_flight)
            idle = self.selector.pick_idle(room, working | {m.client for m in inbox}, at_least_one=not working)
            self.in_flight += self.start(idle)
            flight = min(self.in_flight, key=lambda f: f.next)
            self.now = flight.next[0]
            if flight.messages:
                inbox.append(flight.messages.pop(0)[1])
            self._commit_finished()
        return inbox

    def _tick(self) -> list[Message]:
        """Run one tick of the round clock: idle clients start, and the messages that are due arrive."""
        busy = {f.client.id for f in self.in_flight}
        self.server.selected = [i for i in self.selector.select(self.version) if i not in busy]
        flights = self.start(self.server.selected)
        self.timer.spans.clear()  # ticks are no seconds
        for flight in flights:
            earlier = self.rounds_started.get(flight.client.id, 0)
            self.rounds_started[flight.client.id] = earlier + 1
            due = self.now + 1 + self.clock.delay(flight.client.id, earlier)
            flight.end, flight.messages = due, [(due, m) for _, m in flight.messages]
            self.in_flight.append(flight)
        self.now += 1
        messages = [m for f in self.in_flight for time, m in f.messages if time <= self.now]
        for flight in self.in_flight:
            flight.messages = [(time, m) for time, m in flight.messages if time > self.now]
        self._commit_finished()
        return messages

    def start(self, ids: list[int]) -> list[InFlight]:
        """Broadcast the version to clients, have their rounds computed and their uploads sent, and time all of it."""
        return self.timer.time_rounds(self.client_rounds.compute(ids, self.version, self.now), self.version, self.now)

    def _commit_finished(self) -> None:
        self._commit(sorted((f for f in self.in_flight if f.ended(self.now)), key=lambda f: f.client.id))
        self.in_flight = [f for f in self.in_flight if not f.ended(self.now)]

    def _commit(self, started: list[InFlight]) -> None:
        """Make the new states of clients visible."""
        # A row that outlives its cohort would keep the whole matrix in memory; where all clients are in each round, all
        # rows of a matrix are replaced together.
        copies = self.settings.participation < 1 or not isinstance(self.method.trigger, Everyone)
        for flight in started:
            self.clients.commit(flight.client, copies=copies)
            if flight.local is not None:
                self.local_models[flight.client.id] = flight.local

    def _aggregate(self, inbox: list[Message]) -> None:
        nobody = isinstance(self.method.trigger, Everyone) and not self.server.selected  # all may have dropped out
        if nobody and not (self.channel is not None and self.channel.sums):
            return  # noise on the sum hides who was there, so that it is there without them, too
        for message in inbox:
            message.staleness = self.version - message.version
        inbox.sort(key=lambda m: m.client)
        done = self.method.aggregate(self.server, inbox)
        if isinstance(done, Params):
            name = type(self.method).__name__
            raise TypeError(f"{name}.aggregate returned a model, which nobody keeps: server.state['model'] = ...")
        self.engine.finish(SERVER, done, DrawAddress(self.settings.seed, self.version, SERVER))

    def evaluate(self) -> Evaluation:
        """Score the current version: its generic, personalized and local models."""
        evaluation = self.outputs()
        self.evaluator.scorers.score(evaluation)
        for name, text in self.evaluator.scorers.problems.items():
            if not any(known.startswith(failure(name)) for known in self.warnings):
                self.warnings.append(text)
        return evaluation

    def outputs(self) -> Evaluation:
        """Compute the outputs of the current version's models, without scores: no label is read."""
        evaluation = self.evaluator.outputs(self.version, self.local_models)
        self.engine.check_recordings(1)
        self._collect_notices()
        return evaluation

    def _collect_notices(self) -> None:
        parts = [part.sent for part in (self.channel, self.forger) if part is not None]
        for notices in (self.engine.notices, *(part.notices for part in parts)):
            self.warnings += [notice for notice in dict.fromkeys(notices) if notice not in self.warnings]
        self.engine.notices.clear()

    # -- looking at it ------------------------------------------------------------------------------------------------

    @property
    def spans(self) -> list[Span]:
        """Times of downloads, training and uploads in the last version; of the first versions only."""
        return self.timer.spans

    @property
    def derived(self) -> list[str]:
        """Metrics derived by Remark 4.1 of the SCD paper, as the method trains no such model; for a `bound`, both."""
        return ["gm", "pm"] if self.method.bound else {"gm": ["pm"], "pm": ["gm"], "both": []}[self.method.trains]

    def relations(self) -> dict[str, Any]:
        """Relations between clients that the method has learned, in plain values; empty where it has none."""
        matrices = {name: matrix.tolist() for name, matrix in self.method.relations(self.server).items()}
        sizes = dict(sorted(self.server.sizes.items()))
        return {"clients": list(sizes), "n_train": list(sizes.values()), "matrices": matrices} if matrices else {}

    def privacy(self) -> list[dict[str, Any]]:
        """The worth of the noise so far, and all that it does not cover, in plain values; empty without noise."""
        channel, statements = self.channel, []
        if channel is not None and channel.releases is not None:
            statements.append(client_statement(self.settings, self.method, channel.releases, channel.unprotected))
        if self.settings.dp_sgd is not None:
            assert channel is not None, "it records what clients send"
            statements.append(sample_statement(self.settings, self.engine.private, channel.unprotected))
        return statements

    @property
    def path(self) -> dict[str, str | int]:
        """The recorded path: device, precision, threads, kernels and versions that the numbers were computed with.

        Only on the same path are results promised to be the same bytes.
        """
        device = self.device_data.device
        convolutions = way(self.settings.precision, self.settings.dtype) if device.type != "cpu" else ""
        return {
            **({"convolutions": convolutions} if convolutions else {}),
            "device": str(device),
            "models": str(self.device_data.home),
            "executor": self.engine.executor,
            "precision": self.settings.precision,
            "lanes": self.engine.lanes,
            "intra_op_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "cpu": cpu_kernels(),
        }

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that a later `restore` needs, as tensors by name and as JSON."""
        self.engine.check_recordings(2)  # once more than the evaluations do: nothing wrong is kept
        packer = Packer()
        progress = {
            "version": self.version,
            "now": self.now,
            "starts": self.selector.start_draws,
            "begun": self.rounds_started,
            "selected": self.server.selected,
            "lanes": self.engine.lanes,
            "failed": self.engine.failed,
            "fallbacks": self.engine.fallbacks,
            "warnings": self.warnings,
            "free": self.timer.free,
            "ledger": self.ledger,
            "unattended": self.unselected.steps,
            **({} if self.channel is None else {"channel": self.channel.state()}),
            **({} if self.settings.dp_sgd is None else {"private": self.engine.private.state()}),
        }
        flights = [flight.plain() for flight in self.in_flight]
        plain = {
            "server": packer.pack(self.server.state, "server"),
            # A group of its own for each client: what did not change is not written again.
            "clients": {str(i): packer.pack(state, f"client-{i}") for i, state in self.clients.states().items()},
            "local": {str(i): packer.pack(w, f"local-{i}") for i, w in self.local_models.items()},
            "underway": packer.pack({"held": self.unselected.downloads, "flights": flights}, "underway"),
            "known": packer.pack(progress),
        }
        return packer.tensors, plain

    def restore(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from a `state`: the next `advance` gives the bytes of a run that was never stopped."""
        placed = {name: tensor.to(self.device_data.home) for name, tensor in tensors.items()}

        def back(value: Any) -> Any:
            return unpack(value, placed, self.server.specs)

        known, underway = back(plain["known"]), back(plain["underway"])
        self.version, self.now, self.selector.start_draws = known["version"], known["now"], known["starts"]
        self.rounds_started = known["begun"]
        self.server.round, self.server.selected = max(0, self.version - 1), known["selected"]
        self.enter(self.version)
        self.engine.lanes, self.warnings = known["lanes"], known["warnings"]
        self.engine.failed, self.engine.fallbacks = known["failed"], known["fallbacks"]
        self.timer.free, self.ledger, self.unselected.steps = known["free"], known["ledger"], known["unattended"]
        self.server.state = back(plain["server"])
        self.clients.load({int(i): back(state) for i, state in plain["clients"].items()})
        self.local_models = {int(i): back(w) for i, w in plain["local"].items()}
        if self.channel is not None:
            self.channel.restore(known["channel"])
        if self.settings.dp_sgd is not None:
            self.engine.private.restore(known["private"])
        self.unselected.downloads = underway["held"]
        self.in_flight = [InFlight.of(f, self.clients.bare(f["client"])) for f in underway["flights"]]


def _work_since(earlier: dict[str, Work], later: dict[str, Work]) -> dict[str, int]:
    """Return the work done between two totals, as a row of a table."""
    return {
        f"{prefix}{unit}": getattr(later[side], unit) - getattr(earlier[side], unit)
        for side, prefix in (("clients", ""), ("server", "server_"))
        for unit in ("steps", "samples")
    }
