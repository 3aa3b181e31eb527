"""Three properties of all methods, in rounds with BatchNorm, 40 % participation, momentum 0.9 and weight decay.

Networks that a loss only compares with keep their statistics; the server forgets neither absent clients nor what it
knew; the cell's momentum and decay apply to the parts that `OPTIMIZERS` says.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from bench.conformance.toy_problem import Log, same, watch
from bench.data import Partition
from bench.engine import step as engine_step
from bench.federation.federation import Federation
from bench.method import SGD, Params, State, Train
from bench.model_call import Forward
from bench.params import leaves
from bench.settings import Settings
from tests.engine.problems import EVERY_METHOD, QUICK, needed, toy_data, toy_partition

ROUNDS, SIZES = 6, [7, 4, 7, 3, 4, 8, 4]


def sorted_by_class(method: str) -> Federation:
    """Seven clients with one or two of three classes each, of which a round has three."""
    data = toy_data()
    order = np.argsort(data.y[: data.n_train], kind="stable")
    part = toy_partition(data, SIZES)
    part = Partition(tuple(order[at] for at in part.train), part.validation, part.test, part.global_test)
    settings = Settings(
        method=method, hp=QUICK.get(method, {}), model="test_norm", dtype="float64", clients=len(SIZES),
        participation=0.4, rounds=ROUNDS, epochs=1, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01, seed=3,
        **needed(method),
    )  # fmt: skip
    return Federation(settings, dataset=data, partition=part, public=toy_data(seed=9), executor="sequential")


@dataclass
class Requests(Log):
    """Notes the optimizer of every trained part that is not trained as the cell says, or that is no model."""

    optimizers: dict[str, set[str]] = field(default_factory=dict)

    def _note(self, request: Any, down: State) -> None:
        super()._note(request, down)
        if isinstance(request, Train):
            given = SGD() if request.optimizer is None else request.optimizer
            each = given if isinstance(given, dict) else dict.fromkeys(request.values, given)
            for name, optimizer in each.items():
                how = describe(optimizer)
                if how != "cell" or not isinstance(request.values[name], Params):
                    self.optimizers.setdefault(name, set()).add(how)


def describe(optimizer: Any) -> str:
    """Whose momentum and decay it has."""
    if not isinstance(optimizer, SGD):
        return type(optimizer).__name__
    momentum, decay = (
        "cell" if value is None else f"{value:g}" for value in (optimizer.momentum, optimizer.weight_decay)
    )
    return "cell" if momentum == decay == "cell" else f"momentum {momentum}, decay {decay}"


@dataclass
class Observed:
    """What a run showed.

    Attributes:
        lost: losses in which a network that is no part of the request runs on a batch's statistics.
        forgotten: what the server or a client no longer has, or has otherwise, although the client was absent.
        optimizers: by part, as `Requests` notes them.
    """

    lost: set[str]
    forgotten: set[str]
    optimizers: dict[str, set[str]]


class Watching(Forward):
    """Notes networks whose running statistics move and are asked for by nobody."""

    _inside = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked: set[int] = set()

    def call(self, method: str, w: Params, *args: Tensor, stats: Any = "batch") -> Tensor:
        self._inside = True
        try:
            return super().call(method, w, *args, stats=stats)
        finally:
            self._inside = False

    def moved(self, w: Params) -> Tensor:
        if not self._inside:
            self._asked.add(id(w.buffers))
        return super().moved(w)

    @property
    def lost(self) -> bool:
        """Whether there are such networks, now that the step has asked for what moved."""
        return bool(self._moved.keys() - self._asked)


def memory(federation: Federation) -> dict[str, Any]:
    """What the server has by client: entries under a client's number, rows of arrays; and what it knows of classes."""
    kept: dict[str, Any] = {}

    def look(value: Any, at: str) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                if str(key).isdigit():
                    kept[f"{at} of client {key}"] = int(key), entry
                else:
                    look(entry, f"{at}.{key}")
        elif isinstance(value, Tensor) and value.dim() and len(value) == len(SIZES):
            for number, row in enumerate(value):
                kept[f"{at}, row {number}"] = number, row

    look(federation.server.state, "server.state")
    for number in range(len(SIZES)):
        kept[f"client.state of client {number}"] = number, dict(federation.clients[number].state)
    return kept


def unlike(before: Any, after: Any) -> bool:
    """Whether two values differ in any leaf."""
    old, new = (dict(leaves(value, "")) for value in (before, after))
    return old.keys() != new.keys() or any(not same(leaf, new[at]) for at, leaf in old.items())


def observe(method: str) -> Observed:
    """Run the rounds and watch."""
    with pytest.MonkeyPatch.context() as patch:
        lost: set[str] = set()
        plain = engine_step._Do.gradient

        def gradient(do: Any, loss: Any, values: Any, batch: Any, ctx: Any) -> Any:
            made: list[Watching] = []

            def forward(**options: Any) -> Watching:
                made.append(Watching(**options))
                return made[-1]

            patch.setattr(engine_step, "Forward", forward)
            answer = plain(do, loss, values, batch, ctx)
            for model in made:
                if model.lost:
                    lost.add(loss.__name__)
            return answer

        patch.setattr(engine_step._Do, "gradient", gradient)
        federation, log = sorted_by_class(method), Requests()
        watch(federation, log)
        forgotten: set[str] = set()
        for _ in range(ROUNDS):
            before, known = memory(federation), federation.server.state.get("known")
            federation.advance()
            after = memory(federation)
            for at, (client, value) in before.items():
                if at not in after:
                    forgotten.add(at.split(" of client")[0])
                elif client not in federation.server.selected and unlike(value, after[at][1]):
                    forgotten.add(at.split(" of client")[0].split(", row")[0])
            if isinstance(known, Tensor) and (federation.server.state["known"] < known).any():
                forgotten.add("server.state.known")
        federation.evaluate()
    return Observed(lost, forgotten, log.optimizers)


LOST = {"fedcp": {"separating_loss"}}
"""FedCP's received body runs on the batch's statistics, as its authors' does (card)."""

FORGOTTEN = {
    "fd": {"server.state.sent"},  # a class's means are of one round: once others have renewed it, the absent ones' go
    "fedap": {"server.state.mixed"},  # all clients' means of all clients' layers, anew (card)
    "fedamp": {"server.state.attention"},  # how near all clients' models are to each other, anew in every round
    "fedcac": {"server.state.overlap"},  # of all pairs' important weights, anew
    "fedfomo": {"server.state.models"},  # it offers the models of the last round (card)
    "fedmtl": {"server.state.omega"},  # the relations of all clients, anew
    "pfedhn": {"server.state.embeddings", "server.state.optimizer.embeddings.velocity"},  # decay, momentum of all
}
"""What a method renews for absent clients, too."""

PLAIN, ADAM = "momentum 0, decay 0", "Adam"
OPTIMIZERS = {
    "apfl": {"alpha": {PLAIN}},  # eq. 11
    "apple": {"p": {PLAIN}},  # card
    "fd": {"batch": {"cell"}},  # zeros, whose gradient alone is read
    "fedah": {"mix": {PLAIN}},
    "fedala": {"mix": {PLAIN}},  # the algorithm's projected step
    "fedas": {"w": {PLAIN}},  # its alignment
    "feddbe": {"mean": {PLAIN}, "batch": {PLAIN}},
    "feddf": {"w": {ADAM}},  # distillation on the server
    "fedgc": {"weights": {PLAIN}},
    "fedgen": {"generator": {ADAM}},
    "fedkd": {"map": {"cell"}},
    "fedl2g": {"w": {PLAIN}, "slopes": {PLAIN}},  # its pseudo-training
    "fedmrl": {"projector": {"cell"}},
    "fednova": {"length": {"momentum cell, decay 0"}},  # what the momentum makes of gradients of size 1
    "fedtgp": {"net": {PLAIN}},
    "floco": {"others": {"cell"}},  # endpoints are the model's head
    "floco_plus": {"others": {"cell"}},
    "flute": {"weights": {PLAIN}},  # of the server's step on heads
    "gpfl": {"embeddings": {"cell"}},
    "pefll": {"hyper": {ADAM}, "body": {ADAM}, "top": {ADAM}},  # on the server
    "perada": {"w": {ADAM}},  # distillation on the server
    "perfedavg": {"w": {PLAIN}},  # the adaptation of a tested model
    "pfedhn": {"hyper": {"momentum 0.9, decay 0.001"}, "embeddings": {"momentum 0.9, decay 0.001"}},  # the authors'
    "pfedla": {"net": {PLAIN}, "embedding": {PLAIN}},
    "scaffold": {"w": {"momentum 0, decay cell"}},  # Algorithm 1 has no momentum
}
"""The parts that are no model, or have not the cell's momentum and decay; all other parts have both."""


def surprises(method: str) -> dict[str, Any]:
    """What the run showed of the three, where that is not what is declared above."""
    run = observe(method)
    declared = Observed(LOST.get(method, set()), FORGOTTEN.get(method, set()), OPTIMIZERS.get(method, {}))
    return {name: shown for name, shown in vars(run).items() if shown != vars(declared)[name]}


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_method(name: str) -> None:
    assert surprises(name) == {}
