"""Settings that are checked as a whole: names are known, parts go together, and what was left out has its default."""

import ast
import importlib.util
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from bench.config.validation import Problems, complete_setting, completed_part
from bench.errors import UserError
from bench.plugin import DATASETS, METHODS, MODELS, PARTITIONS
from bench.settings import BY_GROUPS, NO_TRIGGER, RECORDED, Settings, clients_between


class CheckedSettings(Settings):
    """Settings of one training run, checked where they are made.

    An unknown method, hyperparameter, data set, option or key is refused, and what is left out has its default. What
    somebody else's run holds is read as plain `bench.settings.Settings`, whose method need not be known here.

    Example:
        >>> bench.Settings(method="ditto", alpha=0.1, hp={"lam": 0.5}).hp["lam"]
        0.5

    Raises:
        UserError: an unknown name, a value that a hyperparameter or option cannot have, or settings that do not go
            together.
        pydantic.ValidationError: an unknown setting, or a value that it cannot have.
    """

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.__dict__.update(completed(self))
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.model_dump() == other.model_dump()

    def __repr_name__(self) -> str:
        return "Settings"


def completed(cell: Settings) -> dict[str, Any]:
    """Fill in what a user left out of the settings of a cell: hyperparameters and options, with their defaults.

    Returns:
        New values by the setting's name.

    Raises:
        UserError: an unknown method, hyperparameter, data set, option or other name, a value that it cannot have, or
            settings that do not go together.
    """
    values = {key: complete_setting(key, value) for key, value in cell}
    values |= {
        "hp": completed_part(METHODS, cell.method, cell.hp),
        "dataset_options": completed_part(DATASETS, cell.dataset, cell.dataset_options),
        "model_options": completed_part(MODELS, cell.model, cell.model_options),
        "partition_options": completed_part(PARTITIONS, cell.partition, cell.partition_options),
    }
    for model in cell.architectures:
        completed_part(MODELS, model, {})
    for problem in conflicts(cell.model_copy(update=values)).values():  # what an attack does is in its defaults, too
        raise UserError(problem)
    return values


def needs_alpha(partition: str) -> bool:
    """Whether a partition is drawn with a Dirichlet concentration.

    Raises:
        UserError: unknown partition.
    """
    return "alpha" in inspect.signature(PARTITIONS.declaration(partition)).parameters


def conflicts(cell: Settings) -> Problems:
    """Problems of settings that do not go together, by the setting to blame.

    A name that is not known is no problem here; `completed` and the readers of grids refuse it.
    """
    problems = {}
    if cell.partition in PARTITIONS.names():
        if needs_alpha(cell.partition) and cell.alpha is None:
            problems["alpha"] = f"the partition {cell.partition!r} needs alpha; add for instance `alphas: [1, 0.1]`"
        if not needs_alpha(cell.partition) and cell.alpha is not None:
            problems["alpha"] = (
                f"the partition {cell.partition!r} has no alpha; take `alpha` or `alphas` out, or, where other data "
                "sets need them, move them there: `cases: [{name: uneven, partition: dirichlet, alpha: 0.1}]`"
            )
    if cell.precision != "fp32" and cell.dtype != "float32":
        problems["precision"] = (
            f"precision {cell.precision} is for float32; take out `dtype: {cell.dtype}` or `precision`"
        )
    if cell.optimizer.name != "sgd" and (cell.momentum or cell.nesterov):
        problems["optimizer"] = (
            f"optimizer {cell.optimizer.name} has no momentum of sgd; take out `momentum` and `nesterov`"
        )
    if cell.adapters is not None and cell.frozen:
        problems["frozen"] = (
            "`adapters` freeze all layers but those that their `train` names; take out `frozen` and say there what is "
            "trained"
        )
    if cell.clients == "all" and cell.partition not in BY_GROUPS:
        problems["clients"] = (
            f"clients: all is of {' and '.join(BY_GROUPS)}, whose clients are groups of the data; the partition "
            f"{cell.partition!r} needs a number"
        )
    elif cell.clients != "all" and cell.new_clients >= cell.clients:
        problems["new_clients"] = f"new_clients = {cell.new_clients} leaves none of {cell.clients} clients to train"
    if problem := _timeline_problem(cell):
        problems["timeline"] = problem
    if cell.timeline and cell.attack is not None:
        problems["attack"] = "attack: clients whose data change (`timeline`) cannot be malicious; take out one of both"
    stored = [test.name for test in cell.tests if test.name in ("corrupted", "file")]
    if cell.normalise == "per_client" and stored:
        problems["tests"] = (
            f"tests: {stored[0]} needs samples that belong to no client, and `normalise: per_client` has statistics of "
            "clients only; take one of the two out"
        )
    if cell.normalise and (cell.timeline or cell.has_trigger):
        other = "timeline" if cell.timeline else "attack"
        problems["normalise"] = f"normalise: its statistics are of data that stay; take out `{other}` or `normalise`"
    if cell.select_by not in (*RECORDED, *cell.metrics):
        problems["select_by"] = f"select_by: {cell.select_by} needs that score: add it to `metrics`"
    if cell.select_by != "accuracy" and cell.protocol == "paper":
        problems["select_by"] = "select_by: the protocol paper reports the best test accuracy; take out `select_by`"
    if any(test.name == "triggered" for test in cell.tests) and not cell.has_trigger:
        problems["tests"] = NO_TRIGGER
    if cell.method in METHODS.names():
        kind = METHODS.declaration(cell.method)
        if kind.public and cell.public is None:
            problems["method"] = (
                f"the method {cell.method!r} needs public samples; add for instance `public: {{name: cifar100}}`"
            )
        if kind.adapter and (cell.adapters is None or cell.adapters.name != kind.adapter):
            problems["adapters"] = (
                f"the method {cell.method!r} needs adapters of the kind {kind.adapter}; add for instance "
                f"`adapters: {{name: {kind.adapter}, rank: 8}}`"
            )
        if cell.channel and kind.bound:
            problems["channel"] = f"the method {cell.method!r} sends no messages; take out `channel`"
        if cell.client_models and not kind.mixes_models:
            problems["client_models"] = (
                f"the clients of method {cell.method!r} must have one architecture; take out `client_models`"
            )
    return problems


def _timeline_problem(cell: Settings) -> str:
    """Say why the changes of a cell's data cannot be, and what to do; empty where they can."""
    rounds = [change.round for change in cell.timeline]
    if not rounds:
        return ""
    if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
        return f"timeline: rounds {rounds} should rise; write the changes of one round as one entry, in order"
    if rounds[-1] >= cell.rounds:
        return f"timeline: no round is left after round {rounds[-1]} of {cell.rounds}; change earlier or raise `rounds`"
    if missed := [number for number in rounds if number % cell.eval_every]:
        return (
            f"timeline: round {missed[0]} is not evaluated with eval_every = {cell.eval_every}, and what a change "
            "costs is seen before and after it; take multiples"
        )
    if cell.new_clients:
        return "timeline: `new_clients` are scored after the last round only; let clients `arrive` instead"
    return _of_clients(cell) or _of_method(cell)


def _of_clients(cell: Settings) -> str:
    """Say which client cannot arrive or leave."""
    if cell.clients == "all":
        return "timeline: its changes are of clients by number: write how many there are, in place of `clients: all`"
    present = set(range(cell.clients)) - cell.arriving
    for change in cell.timeline:
        for kind, clients in (("leave", change.leave), ("arrive", change.arrive)):
            if clients is None:
                continue
            named = clients_between(clients)
            if clients[1] >= cell.clients:
                return (
                    f"timeline, round {change.round}: {kind} = {list(clients)}, and clients are numbered 0 to "
                    f"{cell.clients - 1}; `clients` counts those that arrive later, too"
                )
            if wrong := named - present if kind == "leave" else named & present:
                state = "is not there" if kind == "leave" else "is there already"
                return f"timeline, round {change.round}: client {min(wrong)} cannot {kind}, as it {state}"
            present = present - named if kind == "leave" else present | named
        if not present:
            return f"timeline, round {change.round}: nobody is left; let fewer clients leave"
        if change.exchange is not None and round(change.exchange * cell.clients) < 2:
            return (
                f"timeline, round {change.round}: exchange = {change.exchange:g} of {cell.clients} clients is less "
                "than two, who could exchange their samples; raise it"
            )
    return "" if set(range(cell.clients)) - cell.arriving else "timeline: all clients arrive later; who is to begin?"


def _of_method(cell: Settings) -> str:
    """Say that the method cannot follow the changes."""
    if cell.method not in METHODS.names():
        return ""
    if (line := counting_line(cell.method)) is not None:
        return (
            f"timeline: the method {cell.method!r} counts a client's samples once and for all (line {line} of its "
            "file), so that it cannot follow; read `client.label_counts` and `client.n_train` in each round"
        )
    moves = any(change.arrive or change.leave for change in cell.timeline)
    if moves and METHODS.declaration(cell.method).everyone:
        return f"timeline: {cell.method} needs all clients in every round; take out `arrive` and `leave`"
    return ""


def counting_line(method: str) -> int | None:
    """The line in which a method's `init` or `init_client` reads numbers of samples, which nothing renews later.

    To count or to name clients by `server.sizes` is no such place: they are the same throughout.
    """
    kind = METHODS.declaration(method)
    try:
        # A class that is only declared has no module yet in which `inspect` could find it.
        spec = None if kind.__module__ in sys.modules else importlib.util.find_spec(kind.__module__)
        file = Path((spec.origin if spec else inspect.getsourcefile(kind)) or "")
    except (TypeError, OSError, ImportError):
        return None
    if not file.is_file():
        return None
    functions = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.FunctionDef)]
    parts = [
        part
        for node in functions
        if node.name in ("init", "init_client")
        for part in ast.walk(node)
        if isinstance(part, ast.expr)
    ]
    return next((part.lineno for part in parts if _reads_counts(part)), None)


def _reads_counts(part: ast.expr) -> bool:
    """Whether a piece of code reads `label_counts`, `n_train` or values of `sizes`."""
    if isinstance(part, ast.Attribute) and part.attr in ("label_counts", "n_train"):
        return True
    inside = part.value if isinstance(part, ast.Attribute | ast.Subscript) else None
    return isinstance(inside, ast.Attribute) and inside.attr == "sizes"
