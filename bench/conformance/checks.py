"""The checks of the conformance suite. Each function returns what is wrong with a method, or an empty text.

Some changes of the problem must not change the result of a method that aggregates correctly. With full batches nothing
is drawn at random, so that neither the numbers of clients matter, nor whether every sample is there once or twice (all
weights n_i / n stay). Other methods set `symmetric = False`.
"""

import contextlib
import functools
import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from bench.conformance.closures import held_tensors
from bench.conformance.toy_problem import (
    ROUNDS,
    SIZES,
    Log,
    advance,
    difference,
    isolate,
    outcome,
    problem,
    same,
    toy_federation,
    watch,
)
from bench.data import Dataset, Partition
from bench.federation.federation import Diverged, Federation
from bench.params import Params, leaves
from bench.plugin import METHODS

TOLERANCE = 1e-9  # between executors, in float64
SYMMETRIC = 1e-8  # between numberings of the clients
FULL = {"participation": 1.0, "batch_size": 2 * sum(SIZES), "epochs": 2}
MANY = 30  # plain numbers and letters of texts in a message; the toy model has 67 weights, 6 clients and 3 classes
LONG = 64  # bits of a whole number


@dataclass
class Case:
    """One method under one set of hyperparameters.

    Attributes:
        name: the registered name.
        hp: the hyperparameters that differ from the defaults.
        log: what the method did in the reference run.
    """

    name: str
    hp: dict[str, Any] = field(default_factory=dict)
    log: Log = field(default_factory=Log)

    def federation(self, **changes: Any) -> Federation:
        """A fresh federation of the method on the toy problem."""
        return toy_federation(self.name, **{"hp": self.hp, **changes})

    @functools.cached_property
    def reference(self) -> Federation:
        """The federation that is advanced under observation, to be read only."""
        return self.federation()

    @functools.cached_property
    def outcomes(self) -> list[dict[str, Any]]:
        """The outcome of the reference run after each round."""
        watch(self.reference, self.log)
        with _global_seeds(1):
            return [advance(self.reference, 1, log=self.log) for _ in range(ROUNDS)]

    @property
    def expected(self) -> dict[str, Any]:
        """The outcome of the reference run."""
        return self.outcomes[-1]


@dataclass(frozen=True)
class Check:
    """A promise that methods keep.

    Attributes:
        find: the function that returns what is wrong with a method, or an empty text.
        remedy: what to do.
        first: whether the check must pass before others make sense.
    """

    name: str
    find: Callable[[Case], str]
    remedy: str
    first: bool


CHECKS: list[Check] = []
"""All checks, in the order in which they are made."""


def promise(name: str, remedy: str, *, first: bool = False) -> Callable[[Callable[[Case], str]], Callable[[Case], str]]:
    """Decorator of a function that checks a promise."""

    def add(find: Callable[[Case], str]) -> Callable[[Case], str]:
        CHECKS.append(Check(name, find, remedy, first))
        return find

    return add


@promise(
    "runs",
    "Mend this first; the other checks come after it.",
    first=True,
)
def runs(case: Case) -> str:
    """Check that the method runs at all; the caller handles its errors."""
    try:
        if not case.expected:
            return "it leaves nothing behind"
        case.reference.state()  # what a checkpoint would hold
        return ""
    except Diverged:
        advance(case.federation(executor="debug"), ROUNDS)  # its error says in which step and layer
        raise


@promise(
    "deterministic",
    "Draw with `draws=` in a request or with `server.rng(purpose)`, never from a global generator, and keep "
    "nothing in module variables.",
    first=True,
)
def deterministic(case: Case) -> str:
    """Check that a second run gives the same bytes whatever the state of global random generators, and uses none."""
    expected = case.expected
    with _global_seeds(2) as drawn_from:
        where = difference(expected, advance(case.federation(), ROUNDS))
    if where:
        return _one_by_one(case) or f"in a second run, {where}"
    return f"the global random generator of {' and '.join(drawn_from)} moves during a run" if drawn_from else ""


@promise(
    "executors agree",
    "Keep Python branches, `.item()` and data-dependent shapes out of losses and steps, and reduce over samples "
    "with `batch.mean` only.",
)
def executors(case: Case) -> str:
    """Check that clients one by one and side by side give one result, and that `vmap` can map every loss over them."""
    other = case.federation(executor="sequential")
    results = advance(other, ROUNDS)
    if slow := _one_by_one(case):
        return slow
    if where := difference(case.expected, results, TOLERANCE):
        return f"between `sequential` and `cohort`, {where}"
    watched = case.federation(executor="debug")
    if where := difference(results, advance(watched, ROUNDS)):
        return f"between `sequential` and `debug`, {where}"
    unseen = [text for text in watched.warnings if text not in other.warnings]
    return unseen[0] if unseen else ""


def _one_by_one(case: Case) -> str:
    """The warning of a loss that cannot be mapped over clients."""
    slow = case.reference.engine.fallbacks
    return next((text for text in case.reference.warnings if slow and text.startswith(slow[0])), "")


@contextlib.contextmanager
def _global_seeds(seed: int) -> Iterator[list[str]]:
    """Seed all global generators and restore them afterwards; the list then names those that were used."""
    positions, names = _positions(), list[str]()
    random.seed(seed)
    np.random.seed(seed)
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    seeded = _positions()
    try:
        yield names
    finally:
        names += [name for name, now in _positions().items() if pickle.dumps(now) != pickle.dumps(seeded[name])]
        random.setstate(positions["Python"])
        np.random.set_state(positions["NumPy"])
        torch.set_rng_state(torch.from_numpy(positions["torch"]))


def _positions() -> dict[str, Any]:
    """Return the states of the global generators."""
    return {"Python": random.getstate(), "NumPy": np.random.get_state(), "torch": torch.get_rng_state().numpy()}


@promise(
    "survives a checkpoint",
    "Keep what later rounds need in `server.state` or `client.state`, as model values, tensors and plain values; "
    "not on the method's object, its class or its module.",
)
def checkpoint(case: Case) -> str:
    """Check that a run that is stopped after every round has the same bytes when it is resumed and evaluated at once.

    Another run in between overwrites all values that a method keeps in the process but outside its states.
    """
    running, *resumed = (case.federation() for _ in range(ROUNDS + 1))
    stranger = case.federation(seed=1)
    for expected, fresh in zip(case.outcomes, resumed, strict=True):
        running.advance()
        tensors, plain = running.state()
        advance(stranger, 1)
        running = fresh
        running.restore(tensors, json.loads(json.dumps(plain)))
        if where := difference(expected, outcome(running)):
            return f"stopped and resumed after every round, the last one round {running.version}, {where}"
    return ""


@promise(
    "evaluation leaves no trace",
    "Change no state in `generic`, `personal` and `broadcast`, and let `init_client` start from "
    "`server.initial_model`, not from the server's present state.",
)
def evaluation(case: Case) -> str:
    """Check that evaluating more often does not change a run."""
    where = difference(case.expected, advance(case.federation(), ROUNDS, evaluate=False))
    return where and f"evaluated only at the end instead of in every round, {where}"


@promise(
    "nothing changed in place",
    "Make a new tensor (`a + b`, not `a += b`): others read the old one.",
)
def in_place(case: Case) -> str:
    """Check that tensors that others may read (states, downloads, uploads) are replaced, never changed."""
    assert case.expected
    changed = sorted(set(case.log.changed))
    return f"changed in place: {', '.join(changed[:4])}" if changed else ""


@promise(
    "messages say all",
    "Let clients and server tell each other everything by broadcast, Upload and Exchange; nothing may pass by way"
    " of the method's object, its module, or the other side's state.",
)
def messages(case: Case) -> str:
    """Check that nothing but messages passes between clients and server."""
    federation = case.federation()
    isolate(federation, case.federation(seed=1))
    where = difference(case.expected, advance(federation, ROUNDS))
    return where and f"with clients and server kept apart, {where}"


@promise(
    "ledger adds up",
    "Send model values, tensors, a few plain numbers and short texts, or lists and dicts of them; make a tensor "
    "of what is longer.",
)
def ledger(case: Case) -> str:
    """Check that every message is counted, and that the ledger's sums are those of the messages."""
    assert case.expected
    uploads = [values for values, _ in case.log.uploads]
    for verb, messages in (("uploads", uploads), ("downloads", case.log.downloads)):
        for message in messages:
            if odd := _uncounted(message):
                return f"what a client {verb} {odd}"
    for column, messages in (("up", uploads), ("down_receivers", case.log.downloads)):
        counted = sum(row[column] + row[f"{column}_buffers"] for row in case.reference.ledger)
        if counted != (real := sum(map(_bytes, messages))):
            return f"the ledger's column {column!r} comes to {counted} bytes, the messages to {real}"
    return ""


def _uncounted(message: Any) -> str:
    """Say what in a message the ledger should count and does not; a letter of a text counts as much as a number."""
    free = 0
    for at, leaf in leaves(message):
        if not isinstance(leaf, Tensor | int | float | str | None):
            return f"has a {type(leaf).__name__} under {at}, whose bytes are not counted"
        if isinstance(leaf, int) and leaf.bit_length() > LONG:
            return f"has a whole number of {leaf.bit_length()} bits under {at}, whose bytes are not counted"
        if len(at) > 2 * MANY:  # names travel free, too
            return f"has the names {at[:MANY]}..., whose bytes are not counted"
        if not isinstance(leaf, Tensor):
            free += max(1, len(leaf)) if isinstance(leaf, str) else 1
    return f"has {free} plain numbers and letters, whose bytes are not counted" if free > MANY else ""


def _bytes(message: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(message) if isinstance(leaf, Tensor))


@promise(
    "weights sum to 1",
    "Average with `mean(messages, name)`, or divide by the weights of the messages.",
)
def weights(case: Case) -> str:
    """Check averages: if training changes nothing, clients send the values that they received, as do averages."""
    log, federation = Log(untrained=True), case.federation()
    watch(federation, log)
    start = outcome(federation)
    end = advance(federation, ROUNDS)
    returned: set[str] = set()
    for sent, received in log.uploads:
        models = {name: value for name, value in sent.items() if isinstance(value, Params)}
        known = {name: received[name] for name in models if isinstance(received.get(name), Params)}
        names = {name for name, value in known.items() if same(models[name].weights, value.weights)}
        if models and not names:
            return ""  # the method averages something else, e.g. gradients
        returned |= names
    averaged = tuple(f"server.state[{name!r}]." for name in returned)
    scores = () if log.looked or not returned else ("metrics['gm ", "metrics['pm ")
    watched = [at for at in start if at.startswith((*averaged, *scores))]
    where = difference({at: start[at] for at in watched}, {at: end[at] for at in watched}, TOLERANCE)
    return where and f"although all clients send back what they received, {where}"


@promise(
    "numbers of clients do not matter",
    "Treat clients alike and address draws by `server.rng(purpose)`; say `symmetric = False` if the paper's "
    "method draws at random for a client.",
)
def numbering(case: Case) -> str:
    """Check that the clients in reverse order give the same models."""
    data, p = problem()
    other = _models(case, data, Partition(p.train[::-1], p.validation[::-1], p.test[::-1], p.global_test))
    last = len(SIZES) - 1
    renamed = {name if name == "generic" else last - name: model for name, model in other.items()}
    return _asymmetry(case, renamed, "with the clients in the opposite order")


@promise(
    "copies of samples do not matter",
    "Weigh clients by n_i / n and samples by `batch.mean`; say `symmetric = False` if the paper's method counts "
    "samples absolutely.",
)
def copies(case: Case) -> str:
    """Check that clients that have every training sample twice give the same models."""
    data, p = problem()
    n = data.n_train
    twice = np.concatenate([np.arange(n), np.arange(len(data.y))])
    more = replace(data, x=data.x[twice], y=data.y[twice], n_train=2 * n)
    train = tuple(np.concatenate([indices, indices + n]) for indices in p.train)
    doubled = Partition(train, p.validation, tuple(test + n for test in p.test), p.global_test + n)
    return _asymmetry(case, _models(case, more, doubled), "with every training sample twice")


def _asymmetry(case: Case, models: dict[Any, Params], when: str) -> str:
    if not METHODS.get(case.name).symmetric:
        return ""
    for name, model in _models(case, *problem()).items():
        gap = float((model.weights - models[name].weights).abs().max())
        if not gap <= SYMMETRIC:
            return f"{when}, the model of {name if name == 'generic' else f'client {name}'} differs by {gap:.2g}"
    return ""


def _models(case: Case, data: Dataset, partition: Partition) -> dict[Any, Params]:
    """The generic and the personalized models after some rounds."""
    federation: Federation = case.federation(problem=(data, partition), **FULL)
    for _ in range(ROUNDS):
        federation.advance()
    evaluator, version = federation.evaluator, federation.version
    personal = evaluator.personal(version) if federation.method.trains != "gm" else {}
    generic = evaluator.generic(version, personal)
    return dict(personal) if generic is None else {"generic": generic, **personal}


@promise(
    "losses hold no tensor",
    "Make it a function of the module that gets tensors by `context=` and hyperparameters as `ctx.hp`.",
)
def losses(case: Case) -> str:
    """Check that losses and steps are fixed functions without tensors of their own: clients can share a computation."""
    assert case.expected
    alike: dict[Any, Any] = {}
    several = False
    for loss in case.log.losses:
        name = _name(loss)
        if isinstance(loss, MethodType):
            return f"{name} is bound to an object"
        if tensors := held_tensors(loss):
            return f"{name} holds a tensor: {tensors[0]}"
        several |= alike.setdefault(_code(loss), loss) is not loss
    return _made_anew(case) if several else ""


def _made_anew(case: Case) -> str:
    """Find a loss that one method object asks for only when it goes through the same rounds again."""
    log, federation = Log(), case.federation()
    watch(federation, log)
    start = federation.state()
    advance(federation, ROUNDS)
    known = list(log.losses)
    federation.restore(*start)
    advance(federation, ROUNDS)
    new = [loss for loss in log.losses[len(known) :] if not any(loss is other for other in known)]
    return f"{_name(new[0])} is made anew by every program" if new else ""


def _code(loss: Any) -> Any:
    """The part that losses out of one factory share."""
    if isinstance(loss, functools.partial):
        return "partial", _code(loss.func)
    return getattr(loss, "__code__", type(loss))


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"a `partial` of {_name(function.func)}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


@promise(
    "hyperparameters",
    "Give each a default, and limits that its search range keeps.",
)
def hyperparameters(case: Case) -> str:
    """Check that every hyperparameter has a default in its search range, and that the whole range is legal."""
    kind = METHODS.get(case.name).Hyper
    if required := [name for name, info in kind.model_fields.items() if info.is_required()]:
        return f"{required[0]} has no default"
    for name, info in kind.model_fields.items():
        search = (info.json_schema_extra or {}).get("search")
        if search is None:
            continue
        ends = search["choices"] if "choices" in search else [search["low"], search["high"]]
        for value in ends:
            try:
                kind(**{name: value})
            except ValidationError:
                return f"{name} = {value} is in its search range and not legal"
        default = getattr(kind(), name)
        inside = default in ends if "choices" in search else default is None or ends[0] <= default <= ends[1]
        if not inside:
            return f"{name} is {default} by default, which is outside its search range"
        if search.get("log") and search["low"] <= 0:
            return f"{name} is searched on a logarithmic scale from {search['low']}"
    return ""


@promise(
    "degenerate settings",
    "Return a sentence about it from `degenerate`.",
)
def degenerate(case: Case) -> str:
    """Check that a method declares the hyperparameters that, set to 0, reduce it to FedAvg or Local."""
    kind = METHODS.get(case.name).Hyper
    usual = kind(**case.hp)
    for name, info in kind.model_fields.items():
        if getattr(usual, name) == 0 or not any(getattr(limit, "ge", None) == 0 for limit in info.metadata):
            continue
        try:
            zero = kind(**{**case.hp, name: 0})
        except ValidationError:  # not together with the others
            continue
        if set(zero.degenerate()) <= set(usual.degenerate()):
            new = _reduced(case.name, {**case.hp, name: 0}) - _reduced(case.name, case.hp)
            if new:
                return f"with {name} = 0, {new.pop()}, and `degenerate` does not say so"
    return ""


def _reduced(name: str, hp: dict[str, Any]) -> set[str]:
    """Find those of a method's models that are FedAvg's or Local's, if all clients take part."""
    scores, trains = _scores(name, hp), METHODS.get(name).trains
    says = set()
    if trains != "pm" and scores["gm"] == _scores("fedavg", {})["gm"]:
        says.add("its generic model is that of FedAvg")
    for other in ("fedavg", "local") if trains != "gm" else ():
        if scores["pm"] == _scores(other, {})["pm"]:
            says.add(f"its personalized models are those of {other}")
    return says


def _scores(name: str, hp: dict[str, Any]) -> dict[str, list[float]]:
    """Exact scores after some rounds in which all clients take part; equal scores mean equal models."""
    federation = toy_federation(name, hp=hp, participation=1.0)
    for _ in range(ROUNDS - 1):
        federation.advance()
    rows = federation.evaluate().metrics
    return {metric: [row["value"] for row in rows if row["metric"] == metric] for metric in ("gm", "pm")}
