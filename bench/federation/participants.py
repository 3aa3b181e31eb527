"""The server and the clients as a federation holds them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.engine.device_data import DeviceData
from bench.federation.features import head_spec
from bench.federation.setup import architectures, frozen_tensors
from bench.method import Client, Message, Method, Trained, mean
from bench.models.factory import build, initial_values, prepare
from bench.models.init import initialise
from bench.models.pretrained import pretrained
from bench.params import Params, Spec, map_tensors
from bench.rng import generator
from bench.settings import Settings

_BUFFERS = "bench.buffers"


def training_sizes(device_data: DeviceData, clients: Iterable[int]) -> dict[int, int]:
    """Count the clients' training samples; 0 is the number of a client that is not there now."""
    return {i: len(device_data.partition.train[i]) for i in clients}


class ServerState:
    """The server (see `bench.method.Server`): its state, and the initial values that all methods of a seed share."""

    def __init__(self, settings: Settings, device_data: DeviceData, shape: tuple[int, ...], clients: list[int]) -> None:
        self.state: dict[str, Any] = {}
        self.round = 0
        self.num_classes = device_data.num_classes
        self.sizes: dict[int, int] = {}
        self.selected: list[int] = []
        self.public_size = device_data.public_size
        self.public_classes = device_data.public_classes
        self.specs: dict[str, Spec] = {}
        self._settings = settings
        self._device_data = device_data
        self._shape = shape
        self._architectures = architectures(settings, [len(indices) for indices in device_data.partition.train])
        self._whole: dict[tuple[str, int, int], Params] = {}
        self._heads: dict[Params, Params] | None = None  # by the whole model; None: the samples are no features
        for client in clients:
            self.initial_model(client)
        self.initial_model()
        self.sizes = training_sizes(device_data, clients)

    def initial_model(self, client: int | None = None, *, draw: int = 0, classes: int | None = None) -> Params:
        """The model value from which every method of this seed starts (of a client's own architecture, if given)."""
        whole = self._whole_model(client, draw=draw, classes=classes)
        if self._heads is None:
            return whole
        if whole not in self._heads:
            spec = head_spec(whole.spec)
            self._heads[whole] = Params(whole.weights, whole.buffers, self.specs.setdefault(spec.arch, spec))
        return self._heads[whole]

    def _train_on_features(self) -> None:
        self._heads = {}

    def _whole_model(self, client: int | None = None, *, draw: int = 0, classes: int | None = None) -> Params:
        """The initial model with its body, also where the cell trains on features."""
        name = self._settings.model if client is None else self.architecture(client)
        outputs = classes or self.num_classes
        at = name, draw, outputs
        if at not in self._whole:
            options = self._settings.model_options if name == self._settings.model else {}
            module = build(name, self._shape, outputs, options, self._settings.adapters)
            sizes = "x".join(map(str, self._shape))
            extras = "".join(f",{k}={v}" for k, v in sorted(options.items()))
            arch = f"{name}({sizes}->{outputs}{extras})"
            if self._settings.adapters:
                arch += f" with {self._settings.adapters.model_dump_json(exclude_none=True)}"
            address = "initial", self._settings.seed, name, draw
            drawn = initial_values(module, name, self._shape, outputs, options, address, self._dtype)
            values = drawn | self._pretrained(name, draw, module)
            first = (draw, outputs) == (0, self.num_classes)
            keeps = self._settings.frozen or self._settings.adapters
            like = None if first or not keeps else self._whole_model(client)
            frozen = frozen_tensors(self._settings, name, module)
            self._whole[at] = self._value(arch, module, values, frozen, like)
        return self._whole[at]

    def _pretrained(self, name: str, draw: int, module: nn.Module) -> dict[str, Tensor]:
        """Read values from the cell's file; further draws differ in the last layer only."""
        if self._settings.pretrained is None or name != self._settings.model:
            return {}
        tensors = pretrained(Path(self._settings.pretrained), module)
        return {name: value for name, value in tensors.items() if not (draw and name.startswith("head."))}

    def architecture(self, client: int) -> str:
        """The name of a client's model."""
        return self._architectures[client]

    def build(self, arch: str, module: nn.Module) -> Params:
        """Initial values for a network of the method's own, built on the meta device."""
        rng = generator("initial", self._settings.seed, arch)
        return self._value(arch, module, initialise(prepare(module), rng, self._dtype))

    def rng(self, purpose: str) -> np.random.Generator:
        """The generator at (seed, purpose, round)."""
        return generator("server", self._settings.seed, purpose, self.round)

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self._settings.dtype)
        return dtype

    def _value(
        self,
        arch: str,
        module: nn.Module,
        values: Mapping[str, Tensor],
        frozen: Collection[str] = (),
        like: Params | None = None,
    ) -> Params:
        """Return a model value of these tensors.

        Args:
            frozen: names of the tensors that the spec holds; those of equal shape have the values that `like` has.
        """
        tensors = {name: tensor.detach().to(self._dtype) for name, tensor in values.items()}
        shared = like.spec.held.on(torch.device("cpu")) if like is not None else {}
        held = {name: tensors[name] for name in frozen}
        held |= {name: t for name, t in shared.items() if name in held and held[name].shape == t.shape}
        spec = Spec.of(arch, module, held)
        spec = self.specs.setdefault(spec.arch, spec)
        empty = torch.zeros(0, dtype=self._dtype)
        weights = torch.cat([empty, *(tensors[e.name].reshape(-1) for e in spec.params)])
        buffers = torch.cat([empty, *(tensors[e.name].reshape(-1) for e in spec.buffers)])
        return Params(weights.to(self._device_data.home), buffers.to(self._device_data.home), spec)


class Clients:
    """All clients that can train, and the ids of those that are there now. A state is created when it is first used."""

    def __init__(self, method: Method, server: ServerState, device_data: DeviceData, *, local_buffers: bool) -> None:
        self.ids = [i for i, size in sorted(server.sizes.items()) if size]
        self._method = method
        self._server = server
        self._device_data = device_data
        self.local_buffers = local_buffers
        self._clients: dict[int, Client] = {}

    def __getitem__(self, i: int) -> Client:
        if i not in self._clients:
            client = self.bare(i)
            self._method.init_client(self._server, client)
            self._clients[i] = client
        return self._clients[i]

    def bare(self, i: int) -> Client:
        """A client without state."""
        data = self._device_data
        counts = torch.as_tensor(data.counts[i], device=data.home)
        return Client(i, len(data.partition.train[i]), counts, n_earlier=data.n_earlier(i))

    def copy(self, i: int) -> Client:
        """Return a copy of a client; changes of its state have no effect on the original."""
        client = self[i]
        return replace(client, state=dict(client.state))

    def commit(self, client: Client, *, copies: bool) -> None:
        """Store a client's new state; with `copies`, rows of a cohort's matrix are copied out of it."""
        if copies:
            client.state = {k: map_tensors(_copied, v) for k, v in client.state.items()}
        if self._device_data.stage:  # its round may have begun before a change
            client = replace(self.bare(client.id), state=client.state)
        self._clients[client.id] = client

    def meet_change(self) -> None:
        """Renew who is there and what the clients know of their samples; those that are not there keep their state."""
        self.ids = [i for i, size in sorted(self._server.sizes.items()) if size]
        self.load(self.states())

    def states(self) -> dict[int, dict[str, Any]]:
        """The states of all clients that have one."""
        return {i: self._clients[i].state for i in sorted(self._clients)}

    def load(self, states: dict[int, dict[str, Any]]) -> None:
        """Restore the states of clients, by client id."""
        self._clients = {}
        for i, state in states.items():
            client = self.bare(i)
            client.state = state
            self._clients[i] = client

    def down(self, i: int) -> dict[str, Any]:
        """The values that a client downloads now; under the BatchNorm policy `local` it keeps its own buffers."""
        client = self[i]
        down = self._method.broadcast(self._server, client)
        if not self.local_buffers:
            return down
        return with_kept(down, client.state.get(_BUFFERS, {}))

    def keep_buffers(self, client: Client, sent: Mapping[str, Any]) -> None:
        """Keep with a client the buffers that it would have sent, under the policy `local`."""
        latest = buffers_of(sent)
        earlier = {name: kept for name, kept in client.state.get(_BUFFERS, {}).items() if name not in latest}
        client.state[_BUFFERS] = earlier | latest

    def mean_buffers(self, generic: Params) -> Params:
        """The generic model, under the policy `local` with the n_i-weighted mean of the clients' buffers."""
        if not self.local_buffers or not generic.spec.b:
            return generic
        weighted = [
            (self._server.sizes[i], b)
            for i, state in self.states().items()
            for b in (kept.buffers for kept in state.get(_BUFFERS, {}).values())
            if b.shape == generic.buffers.shape
        ]
        if not weighted:
            return generic
        total = sum(n for n, _ in weighted)
        return generic.with_buffers(sum((b * (n / total) for n, b in weighted), torch.zeros_like(generic.buffers)))


def buffers_of(sent: Mapping[str, Any]) -> dict[str, Params]:
    """The parts `[b]` of model values that hold their buffers, by the names of the values; without weights."""
    models = {name: value for name, value in sent.items() if isinstance(value, Params) and value.spec.b}
    return {name: value.part(*(entry.name for entry in value.spec.buffers)) for name, value in models.items()}


def with_kept(received: Mapping[str, Any], kept: Mapping[str, Params]) -> dict[str, Any]:
    """Received values with a client's own buffers in the model values.

    A model value gets the buffers kept under its name. Without them it gets the latest of its architecture that the
    client sent under a name by which it receives nothing, as it is the same model then.

    Args:
        received: values by name.
        kept: buffers by the name of the value that they were sent with.
    """
    renamed = [value for name, value in kept.items() if name not in received]
    values = dict(received)
    for name, value in received.items():
        if isinstance(value, Params) and value.spec.b:
            if name in kept:
                values[name] = value.with_buffers(kept[name].buffers)
            else:
                matching = [b for b in (_buffers_for(value.spec, earlier) for earlier in renamed) if b is not None]
                values[name] = value.with_buffers(matching[-1]) if matching else value
    return values


def _buffers_for(spec: Spec, kept: Params) -> Tensor | None:
    """The buffers `[b]` of a spec among those that were kept; None if they are another model's, or not all there."""
    if kept.spec.arch != spec.arch or not {*spec.buffers} <= {*kept.spec.buffers}:
        return None
    return kept.part(*(entry.name for entry in spec.buffers)).buffers


def as_model(value: Any, source: str) -> Params:
    """A model value that a method's function gave.

    Args:
        source: the function's name, for the message.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, Params):
        if layers := value.spec.partial:
            raise TypeError(f"{source} gave a part of a model ({layers}): `join(body, head)` makes a model of parts")
        return value
    kind = "nothing" if value is None else type(value).__name__
    remedy = ', for instance `return trained["w"]`' if isinstance(value, Trained) else ""
    if value is None:
        remedy = ": write that function and return the model, or set `trains` to what the method trains"
    raise TypeError(f"{source} gave {kind} where a model value is due{remedy}")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.device.type == "cpu" and tensor.is_pinned()
    return tensor.clone().pin_memory() if pinned else tensor.clone()


def mean_of_models(models: dict[int, Params], sizes: dict[int, int]) -> Params | None:
    """The n_i-weighted mean of personalized models (Remark 4.1 of the SCD paper); None for mixed architectures."""
    if len({m.spec for m in models.values()}) != 1:
        return None
    model: Params = mean([Message(i, {"w": m}, sizes[i], 0) for i, m in sorted(models.items())], "w")
    return model
