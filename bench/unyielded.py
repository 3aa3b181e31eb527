"""Finds requests in a user's method that are made and never yielded, so that nobody answers them.

Python says nothing of `Upload(...)` on a line of its own, and of `trained = Train(...)` something about tuples: whoever
forgets `yield` is told here, when the class is made.
"""

import ast
import linecache
import sys
from collections.abc import Iterator

from bench.errors import UserError
from bench.requests import ClassStats, Evaluate, Exchange, Gradient, Predict, Train, Upload

REQUESTS = (Train, Gradient, Predict, Evaluate, ClassStats, Upload, Exchange)

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def refuse_unyielded(cls: type) -> None:
    """Refuse a class whose file has a request that is never yielded.

    Raises:
        UserError: the message names file, line and request.
    """
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None:  # a notebook, whose class is saved to a file before it runs
        return
    names = {name for name, value in vars(module).items() if any(value is kind for kind in REQUESTS)}
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # the file was changed since it was imported
        return
    for line, text, name in sorted(_unyielded(tree, names)):
        raise UserError(f"{file}:{line}: {text} is never yielded, so it does nothing: write `yield {name}(...)`")


def _unyielded(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str, str]]:
    """Line, text and name of each request that stands alone, or in a variable that is only looked into."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and (name := _request(node.value, names)):
            yield node.lineno, f"{name}(...)", name
        elif isinstance(node, _Function):
            for statement in ast.walk(node):
                if isinstance(statement, ast.Assign) and (name := _request(statement.value, names)):
                    target = statement.targets[0]
                    if isinstance(target, ast.Tuple) or (isinstance(target, ast.Name) and _only_read(node, target.id)):
                        yield statement.lineno, f"{ast.unparse(target)} = {name}(...)", name


def _request(node: ast.expr, names: set[str]) -> str:
    """Return the name of the request that an expression makes, else an empty string."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) and called.id in names else ""


def _only_read(function: _Function, variable: str) -> bool:
    """Whether every use of a variable takes an entry or attribute of it, as of an answer: nothing yields the whole."""
    inside = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Subscript | ast.Attribute)}
    uses = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == variable)
    return all(id(use) in inside for use in uses if isinstance(use.ctx, ast.Load))
