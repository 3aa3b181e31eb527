"""The interface of a method: the server's state, one client's round, and how the server aggregates the uploads.

A method is one file that reads like its paper's algorithm box. It imports this module and no deeper one.
"""

import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from bench.dft import irfft, rfft, spectral_divergence, takes_one_pass
from bench.errors import UserError
from bench.model_call import Forward, compose
from bench.optim import SGD, Adam
from bench.params import NORMALISATION, Params, join
from bench.plugin import METHODS, SELECTIONS, SERVER_RULES, is_external
from bench.requests import (
    Batch,
    Categorical,
    ClassStats,
    ClassSums,
    Context,
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
    refuse_unyielded,
)

__all__ = [
    "METHODS", "NORMALISATION", "SELECTIONS", "SERVER_RULES", "SGD", "Adam", "Arrivals", "Batch", "Categorical",
    "ClassStats", "ClassSums", "Client", "Context", "Do", "Evaluate", "Everyone", "Exchange", "Feed", "Forward",
    "Gradient", "Hyperparameters", "Message", "Method", "Normal", "Params", "Predict", "Program", "Range", "Selection",
    "Server", "ServerRule", "State", "Tick", "Train", "Trained", "Upload", "Values", "compose", "cross_entropy", "hp",
    "irfft", "join", "mean", "rfft", "spectral_divergence", "takes_one_pass",
]  # fmt: skip

Program = Generator[Request, Any, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """The interval that a sweep searches.

    Attributes:
        low, high: its ends, in the unit of the hyperparameter.
        log: whether a sweep draws the logarithm uniformly, and not the value.
    """

    low: float
    high: float
    log: bool = False


def hp(default: Any, *, search: Range | Sequence[Any] | None = None, static: bool = False, **limits: Any) -> Any:
    """A hyperparameter: the paper's value, the range a sweep searches, and limits (`ge`, `gt`, `le`, `lt`).

    A loss receives floats as tensors, so that runs with different values can share a computation. A float that sets a
    shape or a count must be `static`: the loss then receives the plain value. Other types are always plain values.

    Args:
        default: the value of the paper.
        search: the interval that a sweep searches, or the list of values that it tries; None: it keeps the default.
        static: whether a loss receives the plain value.
        limits: limits of the value, as of pydantic's `Field`: `ge`, `gt`, `le`, `lt`. A value beyond them is an error.
    """
    ranges: dict[str, Any] | None = None
    if search is not None:
        ranges = asdict(search) if isinstance(search, Range) else {"choices": list(search)}
    return Field(default, json_schema_extra={"search": ranges, "static": static}, **limits)


def is_static(field: FieldInfo) -> bool:
    """Whether a hyperparameter was declared `static`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("static"))


class Hyperparameters(BaseModel):
    """Base of a method's `Hyper` class. Unknown names and values out of range are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def degenerate(self) -> list[str]:
        """Warnings about values that turn the method into another or a trivial one, e.g. `mu = 0 is FedAvg`.

        Each is one line; a method without such values keeps the empty list.
        """
        return []


@dataclass
class Client:
    """One client as its own program sees it.

    Attributes:
        id: number of the client.
        n_train: number of training samples.
        label_counts: `[classes]` training samples per class.
        state: values that the client keeps between rounds: model values, tensors and plain values, or lists and dicts
            of them.
        n_earlier: number of the training samples that it had before its data changed and has no longer.
    """

    id: int
    n_train: int
    label_counts: Tensor
    state: State = field(default_factory=dict)
    n_earlier: int = 0


class Server(Protocol):
    """The part of the federation that a method sees.

    Attributes:
        state: values that the server keeps; the same kinds of values as in a client's state.
        round: number of the server version being computed, from 0.
        num_classes: number of classes.
        sizes: number of training samples by client id; 0 for a client that is not there at the time.
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
        """The initial model value, equal for all methods with this seed.

        Args:
            client: use the architecture of this client.
            draw: number of the draw; other numbers give other initial values (HypCluster).
            classes: number of outputs of the head; default: the clients' number of classes (FedMD uses others).

        Returns:
            Weights `[d]` and BatchNorm buffers `[b]`, where the cell keeps its models.
        """

    def build(self, arch: str, module: nn.Module) -> Params:
        """Initial values for the method's own network, drawn at the address of the seed and `arch`.

        Args:
            arch: a name of the network that says its sizes, such as `hypernetwork(20x100)`.
            module: the network on the meta device, which holds no values.

        Returns:
            Weights `[d]` and buffers `[b]`, where the cell keeps its models.
        """

    def rng(self, purpose: str) -> np.random.Generator:
        """The random generator at the address (seed, purpose, round): equal addresses give equal draws."""


@dataclass(frozen=True)
class Everyone:
    """Trigger of synchronous rounds: the server closes a version when all selected clients have answered."""


@dataclass(frozen=True)
class Arrivals:
    """Trigger of asynchronous methods: the server closes a version at the k-th message.

    Attributes:
        k: number of messages in a version.
        concurrency: number of clients that work at any time; None: as many as a round selects.
    """

    k: int
    concurrency: int | None = None


@dataclass(frozen=True)
class Tick:
    """Trigger of the round clock: the server closes a version at every tick, with the messages that have arrived."""


Trigger = Everyone | Arrivals | Tick

Selection = Callable[[Sequence[int], Sequence[int], int, int, np.random.Generator], list[int]]
"""A client selection (`methods/selections.py`). It gets the ids of the clients that train, their numbers of training
samples, how many to select, the round (from 0) and the round's generator, and returns the selected ids."""


@dataclass
class Message:
    """An upload as the server sees it.

    Attributes:
        client: id of the sender.
        values: the uploaded values by name.
        weight: weight in averages.
        version: the server version that the client had downloaded.
        staleness: number of server versions made since then.
        base: the values that the client had downloaded.
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
    """Weighted mean of the messages' values under `name`, of weights as well as BatchNorm buffers.

    Messages without that name are left out. Under the BatchNorm policy `local`, the buffers of the mean are replaced
    when the generic model is tested.

    Args:
        messages: the uploads of a version.
        name: name of the averaged value, a model value or a tensor of any shape.
        equal: weigh all messages equally, and not by `Message.weight`.

    Returns:
        A value of the same shape.

    Raises:
        ValueError: there are no such messages, their weights sum to 0, or their specs differ.
    """
    values = [m.values[name] for m in messages if name in m.values]
    if not values:
        raise ValueError(_nobody_sent(name, messages))
    weights = [1.0 if equal else m.weight for m in messages if name in m.values]
    if not isinstance(values[0], Params | Tensor):
        kind = type(values[0]).__name__
        raise TypeError(f"{name!r} is a {kind} in the uploads: a mean is of model values or tensors")
    whole = sum(weights)
    if whole <= 0:
        raise ValueError(f"the weights of all messages with {name!r} sum to {whole:g}: there is no mean")
    share = [weight / whole for weight in weights]
    if isinstance(values[0], Params):
        if any(v.spec is not values[0].spec and v.spec != values[0].spec for v in values):  # usually one object
            raise ValueError(f"{name!r} has different architectures: they cannot be averaged")
        return Params(
            _weighted([v.weights for v in values], share), _weighted([v.buffers for v in values], share), values[0].spec
        )
    return _weighted(values, share)


def _nobody_sent(name: str, messages: Sequence[Message]) -> str:
    sent = sorted({other for message in messages for other in message.values})
    if not sent:
        return f"no client sent {name!r}: a client's round has to `yield Upload({{{name!r}: ...}})`"
    return f"no client sent {name!r}, but {', '.join(map(repr, sent))}: an upload has the name that `mean_of` says"


def _weighted(tensors: list[Tensor], share: list[float]) -> Tensor:
    if not tensors[0].numel():
        return tensors[0]
    total: Tensor = tensors[0] * share[0]
    for tensor, weight in zip(tensors[1:], share[1:], strict=True):  # stacking all models would double the memory
        total.add_(tensor, alpha=weight)
    return total


class ServerRule:
    """Decides when a version closes, and what replaces the mean of `mean_of`; the base is the synchronous mean.

    Attributes:
        Hyper: the class of its hyperparameters.
        needs: (a, b) where the rule withstands f malicious clients in a round of at least a f + b; None: it promises no
            such number.
    """

    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters
    needs: ClassVar[tuple[int, int] | None] = None

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper

    @property
    def trigger(self) -> Trigger:
        """The event that closes a version. Default: all selected clients have answered."""
        return Everyone()

    def expects(self, clients: int) -> int:
        """Return how many malicious clients the rule withstands in a round. Default: as many as `needs` allows."""
        factor, more = self.needs or (1, clients)
        return (clients - more) // factor

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        """The new value of `server.state[name]`, from its `old` value and the uploads. Default: their weighted mean.

        Values keep their shapes: a model value's weights `[d]` and buffers `[b]`, or a tensor's shape.
        """
        return mean(messages, name)

    def update(self, state: State, old: Any, messages: Sequence[Message], name: str) -> tuple[Any, State]:
        """The new value of `server.state[name]`, and the rule's new state for that entry (an empty dict at first).

        A rule with a state overrides this. The state holds the same kinds of values as `server.state`, where it is
        stored under `rule`; it is replaced, never changed in place.
        """
        return self.combine(old, messages, name), state


class Method:
    """Base class of all methods; a method overrides the parts that its algorithm box defines.

    Attributes:
        Hyper: the class of its hyperparameters.
        trains: which models it trains: the generic one (`gm`), personalized ones (`pm`) or `both`. The harness derives
            a missing one by Remark 4.1 of the SCD paper and flags it.
        mean_of: entries of the server's state that are broadcast and replaced by the mean of the uploads of that name.
        everyone: all clients take part in every round, whatever the setting `participation`.
        holdout: share of a client's training data that `holdout` feeds use (FedFomo's validation split); a client with
            too few samples for this uses its validation samples instead.
        public: whether it needs public samples (the cell's setting `public`).
        bound: whether it does what federated learning does not allow, to show how much the others lose by that; its
            scores are shown in brackets and not ranked.
        adapter: kind of adapters whose tensors the method tells apart, such as `lora`, which the cell needs then.
        moves_base: whether the server changes the weights of layers that have an adapter: they are then no frozen
            tensors but a part of model values, and it is for the method not to train them.
        mixes_models: whether clients may have models of different architectures (the cell's setting `client_models`).
        symmetric: whether, with full batches, results depend neither on the numbering of clients nor on doubling every
            sample. A method that draws at random for a client, or uses absolute sample counts, sets False.
    """

    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters
    trains: ClassVar[Literal["gm", "pm", "both"]] = "gm"
    mean_of: tuple[str, ...] = ()
    everyone: bool = False
    holdout: float = 0.0
    public: ClassVar[bool] = False
    bound: ClassVar[bool] = False
    adapter: ClassVar[str] = ""
    moves_base: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = False
    symmetric: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a user's class whose mistakes show in its text.

        Raises:
            UserError: a request is never yielded, `mean_of` is text, `trains` is no tier, or its constructor takes
                something else than the hyperparameters.
        """
        super().__init_subclass__(**options)
        if cls.trains not in ("gm", "pm", "both"):
            raise UserError(f"{cls.__name__}: trains = {cls.trains!r} is none of 'gm', 'pm' and 'both'")
        if is_external(cls) and "__init__" in cls.__dict__:
            try:
                inspect.signature(cls.__init__).bind(None, None)
            except TypeError:
                raise UserError(
                    f"{cls.__name__}.__init__ should be (self, hyper), as hyperparameters are all that it gets: models "
                    "and numbers of classes come from the server in `init`"
                ) from None
        if isinstance(cls.mean_of, str):
            raise UserError(f'{cls.__name__}: mean_of = "{cls.mean_of}" is text: write ("{cls.mean_of}",) with a comma')
        if is_external(cls):
            refuse_unyielded(cls)

    def __init__(self, hyper: Any) -> None:
        self.hp = hyper
        self.rule = ServerRule(Hyperparameters())

    @property
    def trigger(self) -> Trigger:
        """The event that closes a server version. Default: that of the server rule."""
        return self.rule.trigger

    def init(self, server: Server) -> None:
        """Fill the server's state. Default: an initial model under each name of `mean_of`."""
        for name in self.mean_of:
            server.state[name] = server.initial_model()

    def init_client(self, server: Server, client: Client) -> None:
        """Fill a client's state at its first use. Clients may share values, as these are never changed in place."""

    def broadcast(self, server: Server, client: Client) -> State:
        """The values that the client downloads. Default: the entries of `mean_of`."""
        for name in self.mean_of:
            if name not in server.state:
                raise ValueError(f"{type(self).__name__}.init put no {name!r} into server.state, which mean_of names")
        return {name: server.state[name] for name in self.mean_of}

    def client_round(self, client: Client, down: State) -> Program:
        """One client's round. It returns the client's model right after local training (metric `lm`), or None."""
        raise NotImplementedError(f"{type(self).__name__} has no client_round")

    def unselected_round(self, client: Client, down: State) -> Program | None:
        """The round of a client that is not selected, by the cell's policy (SCD paper, Appendix F); it sends nothing.

        `down` is the current broadcast under the policy `broadcast`, and the client's last download under `cap`.
        """
        return None

    def aggregate(self, server: Server, messages: list[Message]) -> Program | None:
        """Aggregate the messages, which are sorted by client. It may be a generator that trains on the server.

        Default: update every entry of `mean_of` by the server rule.
        """
        for name in self.mean_of:
            rules = server.state.get("rule", {})
            server.state[name], state = self.rule.update(rules.get(name, {}), server.state[name], messages, name)
            if state:
                server.state["rule"] = {**rules, name: state}
        return None

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        """The replies to a round's `Exchange` requests, by client id: what each client's `yield Exchange` returns."""
        raise NotImplementedError(f"{type(self).__name__} has no reply")

    def generic(self, server: Server) -> Program | Params | None:
        """The generic model; training by a generator is discarded afterwards. Default: `server.state["model"]`."""
        return server.state.get("model")

    def personal(self, server: Server, client: Client, down: State) -> Program | Params | None:
        """The client's personalized model, if it downloaded `down` now; may be a generator like `generic`."""
        return None

    def relations(self, server: Server) -> dict[str, Tensor]:
        """Relations between clients that the method has learned, for reports: matrices `[clients, clients]` by name.

        Rows and columns are the clients of `server.sizes`, sorted. It is called once, after the last round.
        """
        return {}

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        """Adapt to a client that took no part in training, for `epochs` epochs, and return its model.

        Default: fine-tune all weights of the generic model, or of the client's personalized model if there is none.
        """
        start = self.generic(server) or self.personal(server, client, down)
        if isinstance(start, Generator):
            start = yield from start
        if not isinstance(start, Params):
            raise NotImplementedError(f"{type(self).__name__} needs its own adapt: it has no model to start from")
        trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
        return trained["w"]


def cross_entropy(model: Forward, values: Values, batch: Batch, ctx: Context) -> Tensor:
    """Mean cross-entropy of part `w`, `[]`."""
    if "w" not in values:
        raise ValueError(f"cross_entropy trains a part 'w', and there is {', '.join(map(repr, values))}: call it 'w'")
    # PyTorch's cross_entropy also looks for labels to ignore, which takes a tenth of a small model's step.
    logits = model(values["w"], batch.x).log_softmax(1)
    try:
        likelihood = logits.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        outputs = logits.shape[1]
        raise ValueError(
            f"a label is larger than the model's {outputs} outputs allow: its last layer should have "
            "server.num_classes of them"
        ) from error
    return -batch.mean(likelihood)
