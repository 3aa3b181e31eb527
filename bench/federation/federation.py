"""The federation loop: one event loop for synchronous, wait-free and asynchronous methods.

A client's program runs to its end from what the client downloaded; its messages reach the server, and its state
changes, at their simulated times. A server version closes by the method's trigger: all selected clients have answered,
K messages have arrived, or the round clock ticks (`bench/federation/waiting.py`).
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from bench.data import Dataset, Partition
from bench.engine.anomalies import Diverged
from bench.engine.batches import DrawAddress
from bench.engine.cpu_path import cpu_kernels
from bench.engine.device import check_lane_kernels, make_deterministic
from bench.engine.device_data import SERVER, DeviceData
from bench.engine.engine import Engine
from bench.engine.memory import keep_freed_memory
from bench.engine.programs import Work
from bench.engine.recorded_steps import GraphCache
from bench.federation.attacks import Forger, make_attack, malicious_clients
from bench.federation.cell_data import load_all
from bench.federation.channel import Channel, NoisyMean
from bench.federation.client_rounds import ClientRounds, Rounds
from bench.federation.clock import Clock
from bench.federation.evaluation import Evaluator
from bench.federation.features import Shelf, can_take_their_place, computed, put_features
from bench.federation.further_scores import failure
from bench.federation.in_flight import InFlight
from bench.federation.participants import Clients, ServerState, training_sizes
from bench.federation.privacy import client_statement, sample_statement
from bench.federation.scores import Evaluation
from bench.federation.selection import Selector
from bench.federation.setup import check_batch_size, divide_clients, make_method, make_selection, warnings
from bench.federation.snapshot import Packer, unpack
from bench.federation.timeline import Span, Timer
from bench.federation.traffic import Ledger
from bench.federation.unselected import Unselected
from bench.federation.waiting import Waiting
from bench.method import Everyone, Message
from bench.model_call import Arithmetic, forget_networks
from bench.settings import Executor, Settings

__all__ = ["Diverged", "Evaluation", "Federation"]


class Execution(TypedDict, total=False):
    """The way a federation is computed; a cell's numbers depend on it only by the recorded path."""

    device: str
    executor: Executor
    threads: int
    offload: bool
    recordings: GraphCache | None
    allow_fallback: Collection[str]
    lane_kernels: bool
    features: Shelf


class Federation:
    """One training run. `Federation.of` makes it from a cell's settings alone.

    Args:
        settings: settings of the cell.
        dataset, partition: data of the cell after its shifts and its attack, without tests if it is a trial of a sweep
            (`bench.federation.cell_data.load_all`).
        public: public samples of the cell; None if it has none.
        device, executor, threads, offload, recordings, allow_fallback, lane_kernels: the way it is computed (`Engine`).
        features: where features are kept that take the samples' place.

    Attributes:
        version: number of server versions done.
        waiting: what the version under way waits for: clients at work, and the simulated time.
        ledger: one row of traffic per version.
        work: steps and samples of the last version, of the clients and of the server.
        warnings: messages to the user about this run, one line each.
        on_features: whether samples are features and models are heads, as all that comes before is frozen.
        malicious: ids of the malicious clients; None if the cell has no attack.
        client_rounds: where the rounds of clients are computed.
        traffic: counts the bytes of the version under way.

    Raises:
        UserError: a setting does not fit the method, the data or the device.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        dataset: Dataset,
        partition: Partition,
        public: Dataset | None,
        device: str = "cpu",
        executor: Executor = "auto",
        threads: int = 1,
        offload: bool = False,
        recordings: GraphCache | None = None,
        allow_fallback: Collection[str] = (),
        lane_kernels: bool = False,
        features: Shelf = computed,
    ) -> None:
        self.settings = settings
        forget_networks()
        make_deterministic(torch.device(device), settings.precision)
        if lane_kernels:
            check_lane_kernels(device, settings.precision)
        self._lane_kernels = lane_kernels
        self.method = make_method(settings)
        selection = make_selection(settings, self.method)
        everybody = sorted({i for stage in partition.stages for i in stage.clients})
        ids, new = divide_clients(everybody, settings, partition.new)
        self.malicious, attack = malicious_clients(settings, partition), make_attack(settings)
        self._forger: Forger | None = None
        if self.malicious and attack is not None and attack.forges:
            self._forger = Forger(settings, attack, self.malicious, self.method)
        self._device_data = DeviceData(
            dataset,
            partition,
            pooled=ids if self.method.bound else (),
            device=torch.device(device),
            dtype=getattr(torch, settings.dtype),
            seed=settings.seed,
            public=public,
            holdout=self.method.holdout,
            offload=offload,
        )
        self.server = ServerState(settings, self._device_data, dataset.shape, ids)
        whole, shape = self.server._whole_model(), dataset.shape
        self.on_features = can_take_their_place(settings, whole.spec.module)
        if self.on_features:
            arithmetic = Arithmetic(settings.precision == "bf16", lane_kernels)
            put_features(self._device_data, whole, dataset, public, arithmetic, threads, features)
            self.server._train_on_features()
            shape = tuple(self._device_data.local.x.shape[1:])
        if self._device_data.largest > 1:  # who has one sample trains with frozen statistics
            for name, spec in {(self.server.architecture(i), self.server.initial_model(i).spec) for i in ids}:
                check_batch_size(settings, name, spec, shape)
        size = max(self.server.initial_model(i).weights.nbytes for i in ids)
        keep_freed_memory(size)
        self.engine = Engine(
            settings,
            self._device_data,
            self.method.hp,
            size=size,
            executor=executor,
            threads=threads,
            recordings=recordings,
            allow_fallback=allow_fallback,
            lane_kernels=lane_kernels,
        )
        self.method.init(self.server)
        self.clients = Clients(self.method, self.server, self._device_data, local_buffers=settings.batchnorm == "local")
        self.evaluator = Evaluator(
            self.method, self.server, self.clients, self.engine, self._device_data, new, self.malicious
        )
        archs = {i: self.server.architecture(i) for i in ids}
        self._clock = Clock(settings.clock, settings.seed, archs, settings.stragglers)
        self._selector = Selector(selection, self.method, self.server, self._clock, settings)
        self._channel = Channel(settings) if settings.channel or settings.dp_sgd is not None else None
        self._noisy_sums = self._channel is not None and self._channel.sums
        if self._channel is not None and self._noisy_sums:
            self.method.rule = NoisyMean(self._channel)
        self.traffic = Ledger(buffers_travel=settings.batchnorm == "aggregate")
        self._timer = Timer(self._clock, self.traffic, ids, wait_free=settings.wait_free)
        self._unselected = Unselected(
            settings, self.method, self.server, self.clients, self._selector, self.engine, self.traffic
        )
        self.client_rounds: Rounds = ClientRounds(
            settings,
            self.method,
            self.server,
            self.clients,
            self.engine,
            channel=self._channel,
            forger=self._forger,
            traffic=self.traffic,
            timer=self._timer,
            unselected=self._unselected,
        )
        self.waiting = Waiting(
            settings,
            self.method,
            self.server,
            self.clients,
            selector=self._selector,
            unselected=self._unselected,
            timer=self._timer,
            clock=self._clock,
        )
        self.version = 0
        self.ledger: list[dict[str, Any]] = []
        self.work: dict[str, int] = {}
        self.warnings = warnings(self.method, settings, len(self.clients.ids), device)

    @classmethod
    def of(cls, settings: Settings, data_root: Path | str = "data", **execution: Unpack[Execution]) -> "Federation":
        """Make the federation of a cell before its first round, with its data, partition, shifts and public samples.

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
        self._timer.spans.clear()
        earlier = dict(self.engine.done)
        if self._channel is not None:
            self._channel.begin(self.version, self._selector.count)
        try:
            inbox = self.waiting.messages(self.client_rounds, self.version)
            nobody = isinstance(self.method.trigger, Everyone) and not self.server.selected  # all may have dropped out
            if self._noisy_sums or not nobody:  # noise hides who was there, so that it is there without them, too
                self._aggregate(inbox)
        except Diverged as error:
            raise Diverged(error.what, self.version) from None
        if self._channel is not None:
            self._channel.close(self._selector.rate)
        self._collect_notices()
        self.version += 1
        self.work = _work_since(earlier, self.engine.done)
        self.ledger.append(self.traffic.close(self.version, self.now, max(self.now, self.waiting.settled)))

    def enter(self, round: int) -> None:
        """Let the clients' data be those of a round, from 1: changes before it have happened.

        What a client that leaves has not finished is lost; its state is kept, should it come back.
        """
        stage = self._device_data.changes.stage(round)
        if stage == self._device_data.stage:
            return
        self._device_data.enter(stage)
        self.server.sizes = training_sizes(self._device_data, self.server.sizes)
        for part in (self.clients, self._selector, self.evaluator, self.waiting):
            part.meet_change()

    def _collect_notices(self) -> None:
        self.warnings += self.engine.notices
        for part in (self._channel, self._forger):
            if part is not None:
                self.warnings += [notice for notice in part.notices if notice not in self.warnings]
        self.engine.notices.clear()

    def _aggregate(self, inbox: list[Message]) -> None:
        for message in inbox:
            message.staleness = self.version - message.version
        inbox.sort(key=lambda m: m.client)
        done = self.method.aggregate(self.server, inbox)
        self.engine.finish(SERVER, done, DrawAddress(self.settings.seed, self.version, SERVER))

    # -- looking at it ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Simulated seconds (ticks for the round clock)."""
        return self.waiting.now

    @property
    def spans(self) -> list[Span]:
        """Times at which the clients of the last version downloaded, trained and uploaded.

        They are recorded for the first versions only.
        """
        return self._timer.spans

    @property
    def derived(self) -> list[str]:
        """Metrics derived by Remark 4.1 of the SCD paper, as the method trains no such model; for a `bound`, both."""
        return ["gm", "pm"] if self.method.bound else {"gm": ["pm"], "pm": ["gm"], "both": []}[self.method.trains]

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
        evaluation = self.evaluator.outputs(self.version, self.waiting.local_models)
        self.engine.check_recordings(1)
        self._collect_notices()
        return evaluation

    def relations(self) -> dict[str, Any]:
        """Relations between clients that the method has learned, in plain values; empty where it has none."""
        matrices = {name: matrix.tolist() for name, matrix in self.method.relations(self.server).items()}
        sizes = dict(sorted(self.server.sizes.items()))
        return {"clients": list(sizes), "n_train": list(sizes.values()), "matrices": matrices} if matrices else {}

    def privacy(self) -> list[dict[str, Any]]:
        """The worth of the noise so far, and all that it does not cover, in plain values; empty without noise."""
        channel, statements = self._channel, []
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
        kernels: dict[str, str | int] = {"convolutions": "lane kernels"} if self._lane_kernels else {}
        return kernels | {
            "device": str(self._device_data.device),
            "models": str(self._device_data.home),
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
            "starts": self._selector.start_draws,
            "begun": self.waiting.rounds_started,
            "selected": self.server.selected,
            "lanes": self.engine.lanes,
            "failed": self.engine.failed,
            "fallbacks": self.engine.fallbacks,
            "warnings": self.warnings,
            "free": self._timer.free,
            "ledger": self.ledger,
            "unattended": self._unselected.steps,
            **({} if self._channel is None else {"channel": self._channel.state()}),
            **({} if self.settings.dp_sgd is None else {"private": self.engine.private.state()}),
        }
        server = packer.pack(self.server.state, "server")
        # A group of its own for each client: what did not change is not written again.
        clients = {str(i): packer.pack(state, f"client-{i}") for i, state in self.clients.states().items()}
        local = {str(i): packer.pack(w, f"local-{i}") for i, w in self.waiting.local_models.items()}
        flights = [flight.plain() for flight in self.waiting.in_flight]
        underway = packer.pack({"held": self._unselected.downloads, "flights": flights}, "underway")
        plain = {
            "known": packer.pack(progress),
            "server": server,
            "clients": clients,
            "local": local,
            "underway": underway,
        }
        return packer.tensors, plain

    def restore(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from a `state`: the next `advance` gives the bytes of a run that was never stopped."""
        placed = {name: tensor.to(self._device_data.home) for name, tensor in tensors.items()}

        def back(value: Any) -> Any:
            return unpack(value, placed, self.server.specs)

        known, underway = back(plain["known"]), back(plain["underway"])
        self.version, self.waiting.now, self._selector.start_draws = known["version"], known["now"], known["starts"]
        self.waiting.rounds_started = known["begun"]
        self.server.round, self.server.selected = max(0, self.version - 1), known.get("selected", [])
        self.enter(self.version)
        self.engine.lanes, self.warnings = known["lanes"], known["warnings"]
        self.engine.failed, self.engine.fallbacks = known.get("failed", []), known.get("fallbacks", [])
        self._timer.free, self.ledger, self._unselected.steps = known["free"], known["ledger"], known["unattended"]
        self.server.state = back(plain["server"])
        self.clients.load({int(i): back(state) for i, state in plain["clients"].items()})
        self.waiting.local_models = {int(i): back(w) for i, w in plain["local"].items()}
        if self._channel is not None and "channel" in known:
            self._channel.restore(known["channel"])
        if "private" in known:
            self.engine.private.restore(known["private"])
        self._unselected.downloads = underway["held"]
        self.waiting.in_flight = [InFlight.of(f, self.clients.bare(f["client"])) for f in underway["flights"]]


def _work_since(earlier: dict[str, Work], later: dict[str, Work]) -> dict[str, int]:
    """Return the work done between two totals, as a row of a table."""
    row: dict[str, int] = {}
    for side, prefix in (("clients", ""), ("server", "server_")):
        row[f"{prefix}steps"] = later[side].steps - earlier[side].steps
        row[f"{prefix}samples"] = later[side].samples - earlier[side].samples
    return row
