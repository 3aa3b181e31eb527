"""The interface of a method: what the server holds, what one client does in a round, how the answers are combined.

A method is one file that reads like its paper's algorithm box. It imports this module and nothing deeper.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from bench.compose import compose
from bench.optim import SGD, Adam
from bench.params import NORMALISATION, Params, join
from bench.plugin import METHODS, SELECTIONS, SERVER_RULES
from bench.requests import (
    Batch,
    Categorical,
    ClassStats,
    ClassSums,
    Do,
    Evaluate,
    Exchange,
    Feed,
    Gradient,
    Normal,
    Predict,
    Request,
    Train,
    Trained,
    Upload,
    Values,
)

__all__ = [
    "METHODS", "NORMALISATION", "SELECTIONS", "SERVER_RULES", "SGD", "Adam", "Arrivals", "Batch", "Categorical",
    "ClassStats", "ClassSums", "Client", "Do", "Evaluate", "Everyone", "Exchange", "Feed", "Gradient",
    "Hyperparameters", "Message", "Method", "Normal", "Params", "Predict", "Program", "Range", "Selection", "Server",
    "ServerRule", "State", "Tick", "Train", "Trained", "Upload", "Values", "compose", "cross_entropy", "hp", "join",
    "mean",
]  # fmt: skip

Program = Generator[Request, Any, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """The interval a sweep searches."""

    low: float
    high: float
    log: bool = False


def hp(default: Any, *, search: Range | Sequence[Any] | None = None, static: bool = False, **limits: Any) -> Any:
    """A hyperparameter: the paper's value, the range a sweep searches, and limits (`ge`, `gt`, `le`, `lt`).

    Floats reach a loss as tensors, so that runs that differ in one may share a computation. What sets a shape or a
    count is `static` and reaches it as the plain value; whatever is not a float always does.
    """
    ranges: dict[str, Any] | None = None
    if search is not None:
        ranges = asdict(search) if isinstance(search, Range) else {"choices": list(search)}
    return Field(default, json_schema_extra={"search": ranges, "static": static}, **limits)


class Hyperparameters(BaseModel):
    """Base of a method's `Hyper` class. Unknown names and values out of range are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def degenerate(self) -> list[str]:
        """What these values amount to where the method loses its point, e.g. `mu = 0 is FedAvg`."""
        return []


@dataclass
class Client:
    """One client as its own program sees it.

    Attributes:
        id: number of the client.
        n_train: number of training samples.
        label_counts: `[classes]` training samples per class.
        state: what the client keeps; model values, tensors and plain values, or lists and dicts of them.
    """

    id: int
    n_train: int
    label_counts: Tensor
    state: State = field(default_factory=dict)


class Server(Protocol):
    """What a method sees of the federation.

    Attributes:
        state: what the server keeps; the same kinds of values as in a client's state.
        round: number of the version being computed, from 0.
        num_classes: number of classes.
        sizes: training samples by client.
        selected: ids of the clients selected in this round, sorted.
        public_size: number of public samples (0: there is no public set).
        public_classes: number of classes of the public set, which need not be the clients' (0: there is none).
    """

    state: State
    round: int
    num_classes: int
    sizes: dict[int, int]
    selected: list[int]
    public_size: int
    public_classes: int

    def initial_model(self, client: int | None = None, *, draw: int = 0, classes: int | None = None) -> Params:
        """The model value that every method of this seed starts from (of a client's own architecture, if given).

        `draw` numbers further, different initial values (HypCluster). `classes`: how many outputs the head has, if not
        one for each class of the clients (FedMD).
        """

    def build(self, arch: str, module: nn.Module) -> Params:
        """Initial values for a network of the method's own, built on the meta device; `arch` names it and its sizes."""

    def rng(self, purpose: str) -> np.random.Generator:
        """The generator at (seed, purpose, round)."""


@dataclass
class Message:
    """An upload as the server sees it.

    Attributes:
        client: who sent it.
        values: what was sent.
        weight: weight in averages.
        version: the server version the client had downloaded.
        staleness: server versions made since then.
        base: what the client had downloaded.
    """

    client: int
    values: dict[str, Any]
    weight: float
    version: int
    staleness: int = 0
    base: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def mean(messages: Sequence[Message], name: str, *, equal: bool = False) -> Any:
    """Weighted mean of what the messages carry under `name`; weights and BatchNorm buffers alike.

    Messages without that name are left out. Under the BatchNorm policy `local` the buffers of the mean are replaced
    when the generic model is tested.

    Raises:
        ValueError: there are no such messages, their weights sum to 0, or their specs differ.
    """
    values = [m.values[name] for m in messages if name in m.values]
    weights = [1.0 if equal else m.weight for m in messages if name in m.values]
    whole = sum(weights)
    if whole <= 0:
        raise ValueError(f"no weight to average {name!r} with")
    share = [weight / whole for weight in weights]
    if isinstance(values[0], Params):
        if any(v.spec is not values[0].spec and v.spec != values[0].spec for v in values):  # mostly they are one
            raise ValueError(f"{name!r} has different architectures: they cannot be averaged")
        return Params(
            _weighted([v.weights for v in values], share), _weighted([v.buffers for v in values], share), values[0].spec
        )
    return _weighted(values, share)


def _weighted(tensors: list[Tensor], share: list[float]) -> Tensor:
    if not tensors[0].numel():
        return tensors[0]
    total: Tensor = tensors[0] * share[0]
    for tensor, weight in zip(tensors[1:], share[1:], strict=True):  # a matrix of all models would double the memory
        total.add_(tensor, alpha=weight)
    return total


@dataclass(frozen=True)
class Everyone:
    """A version closes when all selected clients have answered."""


@dataclass(frozen=True)
class Arrivals:
    """A version closes with the k-th message; `concurrency` clients work at a time (None: the selected number)."""

    k: int
    concurrency: int | None = None


@dataclass(frozen=True)
class Tick:
    """A version closes with every tick of the round clock, with the messages that have arrived by then."""


Trigger = Everyone | Arrivals | Tick

Selection = Callable[[Sequence[int], Sequence[int], int, int, np.random.Generator], list[int]]
"""From the ids of the clients that train, their numbers of training samples, how many are wanted, the round from 0 and
its generator to the ids selected (`methods/selections.py`)."""


class ServerRule:
    """When a version closes and how a declared mean is replaced. The base class is the synchronous weighted mean."""

    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper

    @property
    def trigger(self) -> Trigger:
        """When a version closes."""
        return Everyone()

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The new value of `server.state[name]`."""
        return mean(messages, name)

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """The new value of `server.state[name]`, and what the rule keeps for that entry (an empty dict at first).

        A rule that keeps something overrides this. What it keeps is the same kinds of values as in `server.state`; it
        lies there under `rule` and is replaced, never changed in place.
        """
        return self.combine(old, messages, name), state


class Method:
    """Base of all methods; a method overrides what its algorithm box says.

    Attributes:
        Hyper: the class of its hyperparameters.
        trains: which models it trains: the generic one (`gm`), personalized ones (`pm`) or `both`. The harness derives
            a missing one by Remark 4.1 of the SCD paper and flags it.
        mean_of: entries of the server's state that are broadcast and replaced by the mean of the uploads of that name.
        everyone: all clients take part in every round, whatever the participation.
        holdout: share of a client's training data behind `holdout` feeds (FedFomo's validation split); a client with
            too few samples for it has its validation samples there.
        public: it needs public samples (the cell's setting `public`).
        bound: it does what federated learning may not, and its scores are what others lose by that: they are shown in
            brackets and not ranked.
        mixes_models: its clients may have models of different architectures (the cell's setting `client_models`).
        symmetric: with full batches, the numbers of clients and a second copy of every sample change nothing. A method
            that draws at random for a client, or counts samples absolutely, says False.
    """

    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters
    trains: ClassVar[Literal["gm", "pm", "both"]] = "gm"
    mean_of: tuple[str, ...] = ()
    everyone: bool = False
    holdout: float = 0.0
    public: ClassVar[bool] = False
    bound: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = False
    symmetric: ClassVar[bool] = True

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper
        self.rule = ServerRule(Hyperparameters())

    @property
    def trigger(self) -> Trigger:
        """When a server version closes; the server rule's by default."""
        return self.rule.trigger

    def init(self, server: Server) -> None:
        """Fill the server's state. Default: an initial model under each name of `mean_of`."""
        for name in self.mean_of:
            server.state[name] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        """Fill a client's state, at its first use. Values may be shared: they are never changed in place."""

    def broadcast(self, server: Server, client: Client) -> State:
        """What the client downloads. Default: the entries of `mean_of`."""
        return {name: server.state[name] for name in self.mean_of}

    def client_round(self, client: Client, down: State) -> Program:
        """One client's round. It returns the client's model right after local training (metric `lm`), or None."""
        raise NotImplementedError(f"{type(self).__name__} has no client_round")

    def unselected_round(self, client: Client, down: State) -> Program | None:
        """What a client that is not selected does, by the cell's policy (SCD paper, Appendix F); it sends nothing.

        `down` is the current broadcast under `broadcast`, and what the client received last under `cap`.
        """
        return None

    def aggregate(self, server: Server, messages: list[Message]) -> Program | None:
        """Combine the messages, sorted by client. It may be a generator that trains on the server.

        Default: the server rule's combination of every entry of `mean_of`.
        """
        for name in self.mean_of:
            kept = server.state.get("rule", {})
            server.state[name], state = self.rule.update(kept.get(name, {}), server.state[name], messages, name)
            if state:
                server.state["rule"] = {**kept, name: state}
        return None

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        """Answer the `Exchange` of a round, by client."""
        raise NotImplementedError(f"{type(self).__name__} has no reply")

    def generic(self, server: Server) -> Program | Params | None:
        """The generic model; a generator's training is thrown away afterwards. Default: `server.state["model"]`."""
        return server.state.get("model")

    def personal(self, server: Server, client: Client, down: State) -> Program | Params | None:
        """The client's personalized model, given what it would download now; may be a generator like `generic`."""
        return None

    def relations(self, server: Server) -> dict[str, Tensor]:
        """What the method has found out about how clients relate, for reports: matrices `[clients, clients]` by name.

        Rows and columns are the clients of `server.sizes`, sorted. It is asked once, after the last round.
        """
        return {}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """Adapt to a client that took no part in training, and return its model.

        Default: full fine-tuning of the generic model, or of the personalized one it starts with where there is none.
        """
        start = self.generic(server) or self.personal(server, client, down)
        if isinstance(start, Generator):
            start = yield from start
        if not isinstance(start, Params):
            raise NotImplementedError(f"{type(self).__name__} needs its own adapt: it has no model to start from")
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def cross_entropy(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """Mean cross-entropy of part `w`."""
    # torch's own looks for labels to ignore, which takes a tenth of a small model's step.
    likelihood = model(values["w"], batch.x).log_softmax(1).gather(1, batch.y.unsqueeze(1)).squeeze(1)
    return -batch.mean(likelihood)
