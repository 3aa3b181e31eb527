"""Refusals of changes in a cell's `timeline` that cannot be (docs/changing-data.md), by its settings alone."""

import ast
import inspect
import itertools
from pathlib import Path

from bench.plugin import METHODS
from bench.settings import Settings


def misfits(cell: Settings) -> str:
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
    present = set(range(cell.clients)) - arriving(cell)
    for change in cell.timeline:
        for kind, clients in (("leave", change.leave), ("arrive", change.arrive)):
            if clients is None:
                continue
            named = set(range(clients[0], clients[1] + 1))
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
    return "" if set(range(cell.clients)) - arriving(cell) else "timeline: all clients arrive later; who is to begin?"


def arriving(cell: Settings) -> set[int]:
    """The clients that are not there at first: the first thing that is said of them is that they arrive."""
    late: set[int] = set()
    known: set[int] = set()
    for change in cell.timeline:
        left, came = (
            set(range(clients[0], clients[1] + 1)) if clients else set() for clients in (change.leave, change.arrive)
        )
        late |= came - left - known
        known |= left | came
    return late


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
        file = Path(inspect.getsourcefile(kind) or "")
    except (TypeError, OSError):
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
