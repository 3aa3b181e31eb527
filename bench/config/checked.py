"""Settings that are checked as a whole: names are known, parts go together, and what was left out has its default."""

import ast
import contextlib
import importlib.util
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TypeGuard

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
        self.__dict__.update(checked(self))
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.model_dump() == other.model_dump()

    def __repr_name__(self) -> str:
        return "Settings"


def checked(cell: Settings) -> Settings:
    """The cell with the hyperparameters and options that a user left out.

    Raises:
        UserError: an unknown name, a value that an option cannot have, or settings that do not go together.
    """
    values, problems = completed(cell)
    for problem in problems.values():
        raise UserError(problem)
    return cell.model_copy(update=values)


def completed(cell: Settings) -> tuple[dict[str, Any], Problems]:
    """New values by setting, with what a user left out of a cell, and the problems by the setting to blame."""
    values: dict[str, Any] = {}
    problems: Problems = {}
    for key, registry, name, options in (
        ("hp", METHODS, cell.method, cell.hp),
        ("dataset_options", DATASETS, cell.dataset, cell.dataset_options),
        ("model_options", MODELS, cell.model, cell.model_options),
        ("partition_options", PARTITIONS, cell.partition, cell.partition_options),
    ):
        with _noting(problems, key):
            values[key] = completed_part(registry, name, options)
    for model in cell.architectures:
        with _noting(problems, "client_models"):
            completed_part(MODELS, model, {})
    for key, value in cell:
        if key in cell.model_fields_set and key not in values:
            with _noting(problems, key):
                values[key] = complete_setting(key, value)
    return values, problems | conflicts(cell.model_copy(update=values))  # what an attack does is in its defaults, too


@contextlib.contextmanager
def _noting(problems: Problems, key: str) -> Iterator[None]:
    """Turn a `UserError` inside the block into a problem of a setting."""
    try:
        yield
    except UserError as error:
        problems.setdefault(key, str(error))


def needs_alpha(partition: str) -> bool:
    """Whether a partition, of a known name, is drawn with a Dirichlet concentration."""
    return "alpha" in inspect.signature(PARTITIONS.declaration(partition)).parameters


def conflicts(cell: Settings) -> Problems:
    """Problems of settings that do not go together, by the setting to blame.

    A name that is not known is no problem here; `completed` and the readers of grids refuse it.
    """
    problems = {}
    if cell.partition in PARTITIONS.names():
        name = repr(cell.partition)
        if needs_alpha(cell.partition) and cell.alpha is None:
            problems["alpha"] = f"the partition {name} needs alpha; add for instance `alphas: [1, 0.1]`"
        if not needs_alpha(cell.partition) and cell.alpha is not None:
            problems["alpha"] = f"the partition {name} has no alpha; take it out, or move it to `cases` of other data"
    if cell.precision != "fp32" and cell.dtype != "float32":
        problems["precision"] = f"precision {cell.precision} is for float32; take out `dtype` or `precision`"
    if cell.optimizer.name != "sgd" and (cell.momentum or cell.nesterov):
        problems["optimizer"] = f"optimizer {cell.optimizer.name}: `momentum` and `nesterov` are of sgd; take them out"
    if cell.adapters is not None and cell.frozen:
        problems["frozen"] = "`adapters` freeze all layers but those of their `train`; take out `frozen`"
    if cell.clients == "all" and cell.partition not in BY_GROUPS:
        problems["clients"] = f"clients: all is of {' and '.join(BY_GROUPS)}; {cell.partition!r} needs a number"
    elif cell.clients != "all" and cell.new_clients >= cell.clients:
        problems["new_clients"] = f"new_clients = {cell.new_clients} leaves none of {cell.clients} clients to train"
    if problem := _timeline_problem(cell):
        problems["timeline"] = problem
    if cell.timeline and cell.attack is not None:
        problems["attack"] = "attack: clients whose data change (`timeline`) cannot be malicious; take out one of both"
    stored = [test.name for test in cell.tests if test.name in ("corrupted", "file")]
    if cell.normalise == "per_client" and stored:  # their samples belong to no client
        problems["tests"] = f"tests: {stored[0]} cannot be with `normalise: per_client`; take one of the two out"
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
        kind, name = METHODS.declaration(cell.method), f"the method {cell.method!r}"
        if kind.public and cell.public is None:
            problems["method"] = f"{name} needs public samples; add for instance `public: {{name: cifar100}}`"
        if kind.adapter and (cell.adapters is None or cell.adapters.name != kind.adapter):
            problems["adapters"] = f"{name} needs adapters of the kind {kind.adapter}; add `adapters: {kind.adapter}`"
        if cell.channel and kind.bound:
            problems["channel"] = f"{name} sends no messages; take out `channel`"
        if cell.client_models and not kind.mixes_models:
            problems["client_models"] = f"the clients of {name} must have one architecture; take out `client_models`"
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
        return f"timeline: round {missed[0]} is not evaluated with eval_every = {cell.eval_every}; take multiples"
    if cell.new_clients:
        return "timeline: `new_clients` are scored after the last round only; let clients `arrive` instead"
    return _of_clients(cell) or _of_method(cell)


def _of_clients(cell: Settings) -> str:
    """Say which client cannot arrive or leave."""
    if cell.clients == "all":
        return "timeline: its changes are of clients by number: write how many there are, in place of `clients: all`"
    present = set(range(cell.clients)) - cell.arriving
    if not present:
        return "timeline: all clients arrive later; who is to begin?"
    for change in cell.timeline:
        here = f"timeline, round {change.round}"
        for kind, clients in (("leave", change.leave), ("arrive", change.arrive)):
            named = clients_between(clients)
            if clients and clients[1] >= cell.clients:
                return f"{here}: {kind} = {list(clients)}, and clients are numbered 0 to {cell.clients - 1} in all"
            if wrong := named - present if kind == "leave" else named & present:
                state = "is not there" if kind == "leave" else "is there already"
                return f"{here}: client {min(wrong)} cannot {kind}, as it {state}"
            present = present - named if kind == "leave" else present | named
        if not present:
            return f"{here}: nobody is left; let fewer clients leave"
        if change.exchange is not None and round(change.exchange * cell.clients) < 2:
            return f"{here}: exchange = {change.exchange:g} of {cell.clients} clients is less than two; raise it"
    return ""


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
    module = METHODS.declaration(method).__module__
    spec = importlib.util.find_spec(module) if module != "__main__" else None
    if spec is None or not (file := Path(spec.origin or "")).is_file():
        return None
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef) and node.name in ("init", "init_client"):
            for part in ast.walk(node):
                if _reads_counts(part):
                    return part.lineno
    return None


def _reads_counts(part: ast.AST) -> TypeGuard[ast.expr]:
    """Whether a piece of code reads `label_counts`, `n_train` or values of `sizes`."""
    if isinstance(part, ast.Attribute) and part.attr in ("label_counts", "n_train"):
        return True
    inside = part.value if isinstance(part, ast.Attribute | ast.Subscript) else None
    return isinstance(inside, ast.Attribute) and inside.attr == "sizes"
