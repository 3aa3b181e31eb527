"""A small problem that any method solves in a moment, and tools to observe what the method does meanwhile."""

import copy
import itertools
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.method import ClassStats, Client, Gradient, Message, Method, Predict, Program, Server, State, Train
from bench.params import Params, leaves
from bench.plugin import METHODS
from bench.requests import Exchange, Request, Upload
from bench.rng import generator
from bench.settings import Settings

T = TypeVar("T")
SIZES = (5, 3, 1, 0, 4, 2)  # training samples by client: unequal, one of one sample, one of none
FEATURES, CLASSES, TESTS, PUBLIC = 4, 3, 20, 12
ROUNDS = 3


def toy_federation(method: str, **changes: Any) -> Federation:
    """A federation on the toy problem: float64, unequal clients, some of them selected.

    `changes` are settings of the cell that differ, the `executor`, and the `problem`: data set and partition.
    """
    executor = changes.pop("executor", "cohort")
    data, partition = changes.pop("problem", None) or problem()
    common: dict[str, Any] = {
        "model": "mlp", "model_options": {"hidden": 8}, "dtype": "float64", "clients": len(SIZES),
        "participation": 0.6, "rounds": ROUNDS, "epochs": 1, "batch_size": 3,
        "lr": 0.1, "momentum": 0.5,
    }  # fmt: skip
    if kind := METHODS.get(method).adapter:
        common["adapters"] = {"name": kind, "rank": 2, "alpha": 2}
    settings = Settings(method=method, **{**common, **changes})
    return Federation(
        settings, dataset=data, partition=partition, executor=executor, public=_samples("public", PUBLIC, 0)
    )


def problem() -> tuple[Dataset, Partition]:
    """Return the data set and its partition."""
    cuts = np.cumsum([0, *SIZES])
    train = tuple(np.arange(a, b) for a, b in itertools.pairwise(cuts))
    test = np.arange(cuts[-1], cuts[-1] + TESTS)
    none = (np.zeros(0, np.int64),) * len(SIZES)
    partition = Partition(train, none, tuple(np.array_split(test, len(SIZES))), test)
    return _samples("trial", sum(SIZES), TESTS), partition


def _samples(purpose: str, train: int, test: int) -> Dataset:
    """Noisy points around one centre per class."""
    rng, n = generator("trial", purpose), train + test
    y = rng.integers(0, CLASSES, n)
    x = generator("trial").normal(size=(CLASSES, FEATURES))[y] + 0.5 * rng.normal(size=(n, FEATURES))
    zeros, ones = (0.0,) * FEATURES, (1.0,) * FEATURES
    return Dataset(purpose, x.astype(np.float32), y, train, CLASSES, zeros, ones, purpose)


def same(a: Any, b: Any) -> bool:
    """Return whether two tensors have the same bytes, or two plain values are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


@dataclass
class Log:
    """A record of what a method did.

    Attributes:
        untrained: whether training is skipped, so that what is trained comes back unchanged.
        downloads: what the clients received, in order.
        uploads: what the clients sent, each with what its sender had received.
        losses: the losses and steps it asked to train with.
        looked: a client asked for gradients, class statistics or outputs on its own samples: its model may change
            although nothing is trained.
        changed: what it changed in place.
    """

    untrained: bool = False
    downloads: list[State] = field(default_factory=list)
    uploads: list[tuple[Mapping[str, Any], State]] = field(default_factory=list)
    losses: list[Callable[..., Any]] = field(default_factory=list)
    looked: bool = False
    changed: list[str] = field(default_factory=list)
    _kept: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)

    def remember(self, values: Any, where: str) -> None:
        """Keep copies of tensors, to find later changes."""
        self._kept += [(at, leaf, leaf.clone()) for at, leaf in leaves(values, where) if isinstance(leaf, Tensor)]

    def note_changes(self) -> None:
        """Record which of the kept tensors have changed."""
        self.changed += [at for at, tensor, kept in self._kept if not same(tensor, kept)]
        self._kept.clear()

    def relay(self, program: Program, down: State) -> Program:
        """Pass on a program's requests and record them; `down` is the download of its client."""
        answer = None
        while True:
            try:
                request = program.send(answer)
            except StopIteration as stop:
                return stop.value
            self._note(request, down)
            try:
                answer = yield request
            except Exception as error:
                program.throw(error)  # at its own `yield`, which the traceback then shows
                raise
            if self.untrained and isinstance(request, Train):
                answer = replace(answer, values={**answer.values, **request.values})

    def _note(self, request: Request, down: State) -> None:
        self.looked |= isinstance(request, Gradient | ClassStats)
        self.looked |= isinstance(request, Predict) and request.samples == "train"
        match request:
            case Train():
                self.losses += [f for f in (request.loss, request.step) if f is not None]
            case Gradient():
                self.losses.append(request.loss)
            case Upload() | Exchange():
                self.uploads.append((request.values, down))
                self.remember(request.values, "upload")


class Observed(Method):
    """Wraps a method and records everything that passes between server, clients and engine in a log."""

    _bench_log: Log

    def client_round(self, client: Client, down: State) -> Program:
        log = self._bench_log
        log.downloads.append(down)
        log.remember(down, "down")
        log.remember(client.state, "client.state")
        return self._relayed(super().client_round(client, down), down)

    def reply(self, server: Server, messages: list[Message]) -> dict[int, State]:
        replies = super().reply(server, messages)
        self._bench_log.downloads += [replies[m.client] for m in messages]
        return replies

    def aggregate(self, server: Server, messages: list[Message]) -> Program | None:
        return self._relayed(super().aggregate(server, messages), {})

    def generic(self, server: Server) -> Program | Params | None:
        return self._relayed(super().generic(server), {})

    def personal(self, server: Server, client: Client, down: State) -> Program | Params | None:
        return self._relayed(super().personal(server, client, down), {})

    def _relayed(self, answer: T, down: State) -> T:
        """A program that is recorded; what is none stays as it is."""
        return self._bench_log.relay(answer, down) if isinstance(answer, Generator) else answer  # type: ignore[return-value]


class Isolated(Method):
    """A base class put in front of the method's class. Server and clients then share nothing but messages.

    Each client's program runs on its own copy of the method as `init` left it, and the server does not see the states
    of clients. Before the clients and the server start to work, a federation of another seed runs a round, so that
    anything kept in the method object or in globals is overwritten.
    """

    _bench_original: Method
    _bench_stranger: Federation
    _bench_fresh: bool

    def broadcast(self, server: Server, client: Client) -> State:
        self._bench_fresh = True
        return super().broadcast(server, Client(client.id, client.n_train, client.label_counts))

    def client_round(self, client: Client, down: State) -> Program:
        if self._bench_fresh:
            self._bench_stranger.advance()
            self._bench_fresh = False
        return (yield from copy.deepcopy(self._bench_original).client_round(client, down))

    def aggregate(self, server: Server, messages: list[Message]) -> Program | None:
        self._bench_stranger.advance()
        return super().aggregate(server, messages)


def watch(federation: Federation, log: Log) -> None:
    """Make a federation record what its method does in a log."""
    _replace_class(federation, Observed, _bench_log=log)


def isolate(federation: Federation, stranger: Federation) -> None:
    """Make server and clients of a federation share nothing but messages."""
    original = copy.deepcopy(federation.method)
    _replace_class(federation, Isolated, _bench_original=original, _bench_stranger=stranger, _bench_fresh=True)


def _replace_class(federation: Federation, kind: type[Method], **attributes: Any) -> None:
    method: Any = federation.method
    method.__class__ = type(type(method).__name__, (kind, type(method)), {})  # messages name the method's class
    vars(method).update(attributes)


def advance(federation: Federation, rounds: int, *, evaluate: bool = True, log: Log | None = None) -> dict[str, Any]:
    """Advance by some rounds, evaluate after every one or only after the last, and return the `outcome`.

    The `log` notes what is changed in place.
    """
    log, results = log or Log(), dict[str, Any]()
    for k in range(rounds):
        log.remember(federation.server.state, "server.state")
        log.remember(federation.clients.states(), "client.state")
        federation.advance()
        if evaluate or k == rounds - 1:
            results = outcome(federation)
        log.note_changes()
    return results


def outcome(federation: Federation) -> dict[str, Any]:
    """Return everything that a run has produced so far, by name: states, ledger and scores."""
    scores, names = federation.evaluate(), ("metric", "on", "mean", "quantity")
    results = {
        "server.state": federation.server.state,
        "client.state": federation.clients.states(),
        "ledger": federation.ledger,
        "metrics": {" ".join(str(row[key]) for key in names if row[key]): row["value"] for row in scores.metrics},
    }
    flat = [pair for name, value in results.items() for pair in leaves(value, name)]
    return {at: leaf.clone() if isinstance(leaf, Tensor) else leaf for at, leaf in flat}


def difference(a: dict[str, Any], b: dict[str, Any], tolerance: float = 0.0) -> str:
    """Describe where two results of `advance` first differ, and by how much; empty if they are equal.

    With a tolerance (absolute and relative) accuracies are not compared, as a sample may lie on a decision boundary.
    """
    if only := sorted(a.keys() ^ b.keys()):
        return f"{only[0]} is there in one run only"
    for at, x in a.items():
        y = b[at]
        if same(x, y) or (tolerance and "accuracy" in at):
            continue
        if not isinstance(x, Tensor | float) or type(x) is not type(y):
            return f"{at} is {x} and {y}"
        p, q = (torch.as_tensor(values, dtype=torch.float64) for values in (x, y))
        if p.shape != q.shape:
            return f"{at} has the shapes {tuple(p.shape)} and {tuple(q.shape)}"
        if not torch.allclose(p, q, rtol=tolerance, atol=tolerance):
            return f"{at} differs by {float((p - q).abs().max()):.2g}"
    return ""
