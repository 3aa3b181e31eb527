"""Search of a method's source code for places where it reads samples in another way than through models.

A method without such places works as well where its samples are features and its model is the head.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.config.code_digests import sources
from bench.plugin import METHODS

_LIBRARIES = {"bench", "methods", "torch", "numpy", "scipy", "pydantic"} | sys.stdlib_module_names
_RUNS = {"features"}  # `model(w, x)` and `model.features(w, x)`
_UNSEEN = {"getattr", "vars", "asdict", "replace"}  # of a batch, they may read its inputs under no name


def reads_inputs_by_models_only(method: str) -> bool:
    """Whether a method's code hands samples to its models and does nothing else with them.

    Every `batch.x` must be an argument of `model(...)` or `model.features(...)`, and so must the inputs of a function
    that `compose` gets. Whoever makes networks of its own, imports other packages than those that are known here, or
    has no source file may do something else: the answer is no.
    """
    kind = METHODS.get(method)
    try:
        file = Path(inspect.getsourcefile(kind) or "")
    except TypeError:
        return False
    return file.is_file() and _by_models_only(kind.__module__, file)


def _by_models_only(module: str, file: Path) -> bool:
    files = sources(module, file)
    trees = [ast.parse(source.read_bytes()) for source in files.values()]
    known = _LIBRARIES | {name.partition(".")[0] for name in files}
    if any(name.partition(".")[0] not in known for tree in trees for name in _imported(tree)):
        return False
    nodes = [node for tree in trees for node in ast.walk(tree)]
    if any(isinstance(node, ast.alias) and node.name == "compose" and node.asname for node in nodes):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(isinstance(call.func, ast.Attribute) and call.func.attr == "build" for call in calls):
        return False
    if any(_name(call.func) in _UNSEEN and call.args and _is_batch(call.args[0], nodes) for call in calls):
        return False
    given = {id(argument) for call in calls if _runs_a_model(call) for argument in call.args}
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    composed = [call.args[0] if call.args else None for call in calls if _called(call) == "compose"]
    inputs: list[ast.expr] = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "x"]
    for function in composed:
        definition = functions.get(_name(function))
        if definition is None or len(definition.args.args) != 3:
            return False
        third = definition.args.args[2].arg
        inputs += [node for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id == third]
    return all(id(node) in given for node in inputs)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)


def _is_batch(node: ast.expr, nodes: list[ast.AST]) -> bool:
    """Whether a name is that of a batch, by its letters or by a parameter's annotation."""
    batches = {a.arg for a in nodes if isinstance(a, ast.arg) and a.annotation and _name(a.annotation) == "Batch"}
    return _name(node) in batches | {"batch"}


def _runs_a_model(call: ast.Call) -> bool:
    return _name(call.func) == "model" or (
        isinstance(call.func, ast.Attribute) and call.func.attr in _RUNS and _name(call.func.value) == "model"
    )


def _name(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "bench"  # a relative import is of the method's own package
