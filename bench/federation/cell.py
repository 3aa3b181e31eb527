"""A cell's context: all that the parts of its federation share, made once and in order from settings and data."""

from typing import Unpack

import torch

from bench.data import Dataset, Partition
from bench.engine.device import keep_freed_memory, make_deterministic
from bench.engine.device_data import DeviceData
from bench.engine.engine import Engine, EngineOptions
from bench.federation.attacks import Forger, make_attack, malicious_clients
from bench.federation.channel import Channel, NoisyMean
from bench.federation.features import Shelf, can_take_their_place, computed, with_features
from bench.federation.participants import Clients, ServerState
from bench.federation.setup import check_batch_size, divide_clients, make_method, make_selection
from bench.federation.simulated_time import Clock, Timer
from bench.federation.traffic import Ledger
from bench.model_call import Arithmetic, forget_networks
from bench.settings import Settings


class Execution(EngineOptions, total=False):
    """The way a federation is computed; a cell's numbers depend on it only by the recorded path."""

    device: str
    offload: bool
    features: Shelf


class CellContext:
    """A cell before its first round: the context that selection, clients' rounds, simulated time and evaluation take.

    Args:
        settings: settings of the cell.
        dataset, partition, public: as of `bench.federation.cell_data.load_all`.
        device: where it is computed.
        offload: whether models are kept in the host's memory between trainings.
        features: where features are kept that take the samples' place.
        engine: options of `Engine`.

    Attributes:
        new: ids of the clients held out of training.
        malicious: ids of the malicious clients; None if the cell has no attack.
        on_features: whether samples are features and models are heads, as all that comes before is frozen.
        traffic: counts the bytes of the version under way.
        channel, forger: what uploads go through, and who forges them; None where the cell has none.

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
        offload: bool = False,
        features: Shelf = computed,
        **engine: Unpack[EngineOptions],
    ) -> None:
        self.settings = settings
        forget_networks()
        make_deterministic(torch.device(device), settings.precision)
        self.method = make_method(settings)
        self.selection = make_selection(settings, self.method)
        everybody = sorted({i for stage in partition.stages for i in stage.clients})
        ids, self.new = divide_clients(everybody, settings, partition.new)
        self.malicious, attack = malicious_clients(settings, partition), make_attack(settings)
        self.forger: Forger | None = None
        if self.malicious and attack is not None and attack.forges:
            self.forger = Forger(settings, attack, self.malicious, self.method)
        self.device_data = DeviceData(
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
        self.server = ServerState(settings, self.device_data, dataset.shape, ids)
        whole, shape = self.server._whole_model(), dataset.shape
        self.on_features = can_take_their_place(settings, whole.spec.module)
        if self.on_features:
            arithmetic = Arithmetic(settings.precision)
            data, how = self.device_data, (arithmetic, engine.get("threads", 1), features)
            data.local = with_features(data.local, whole, dataset, *how)
            if public is not None and data.public is not None:
                data.public = with_features(data.public, whole, public, *how)
            self.server._train_on_features()
            shape = tuple(data.local.x.shape[1:])
        if self.device_data.largest > 1:  # who has one sample trains with frozen statistics
            for name, spec in {(self.server.architecture(i), self.server.initial_model(i).spec) for i in ids}:
                check_batch_size(settings, name, spec, shape)
        size = max(self.server.initial_model(i).weights.nbytes for i in ids)
        keep_freed_memory(size)
        self.engine = Engine(settings, self.device_data, self.method.hp, size=size, **engine)
        self.method.init(self.server)
        self.clients = Clients(self.method, self.server, self.device_data, local_buffers=settings.batchnorm == "local")
        archs = {i: self.server.architecture(i) for i in ids}
        self.clock = Clock(settings.clock, settings.seed, archs, settings.stragglers)
        self.traffic = Ledger(buffers_travel=settings.batchnorm == "aggregate")
        self.timer = Timer(self.clock, self.traffic, ids, wait_free=settings.wait_free)
        # Under DP-SGD the channel changes nothing, but records what clients send beside models, which has no noise.
        self.channel = Channel(settings) if settings.channel or settings.dp_sgd is not None else None
        if self.channel is not None and self.channel.sums:
            self.method.rule = NoisyMean(self.channel)
