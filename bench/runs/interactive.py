"""Methods, data sets, partitions, shifts, models and metrics that are defined in a notebook's cell (docs/plugins.md).

Worker processes have no notebook, and a cell's id holds the syntax of a file. So `save` writes each definition to a
file in the run's folder, with the imports that it needs and the notebook's functions and classes that it uses, and
loads it like any other plug-in file. What a file cannot hold, such as a value of the notebook, is refused by its name.
A class that a script gives to `bench.run` (`methods=`) is treated alike, so that the rest of the script is no part of
the cells' ids.
"""

import ast
import builtins
import hashlib
import linecache
import symtable
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bench import plugin
from bench.errors import UserError
from bench.store import inside

FOLDER = "code"
"""Folder in a run's folder with the files of a notebook's definitions."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def save(run: Path, used: Collection[tuple[str, str]]) -> list[Path]:
    """Write the notebook's definitions to files of a run's folder and load these instead; returns the files.

    Args:
        run: the run's folder.
        used: kind and name of what the run uses.

    Raises:
        UserError: the source of a definition is not known, it uses a name that the file could not resolve, or the
            folder for the files is a link.
    """
    definitions = [plugin.INTERACTIVE[item] for item in sorted(used) if item in plugin.INTERACTIVE]
    texts = [_text(interactive) for interactive in definitions]
    files = []
    for interactive, text in zip(definitions, texts, strict=True):
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        file = run / FOLDER / f"{interactive.name}_{digest}.py"
        inside.make_folder(run, file.parent)
        if not inside.is_file(file) or inside.read_bytes(file) != text.encode():
            inside.replace(file, text.encode())
        interactive.load(file)
        files.append(file)
    return files


def _text(interactive: plugin.Interactive) -> str:
    """The text of a definition's file: imports, the code that the definition uses, itself, and its registration."""
    label = f"{interactive.registry.kind} {interactive.name!r}"
    if _source(interactive, interactive.item) is None:
        raise UserError(
            f"{label} is defined where Python keeps no source (a plain prompt, exec): put it into a .py file and load "
            "that by bench.load_file, or use a notebook"
        )
    imports: set[str] = set()
    parts: dict[str, str] = {}  # in the order in which a file needs them
    refusals: set[str] = set()
    _collect(interactive, interactive.item, imports, parts, refusals)
    if refusals:
        place = "script" if "__file__" in interactive.namespace else "notebook"
        raise UserError(
            f"{label} uses {', '.join(sorted(refusals))} of the {place}, which its workers do not have: make it part "
            "of the definition (a hyperparameter, an option, an argument's default), or put all of it into a .py file "
            "and load that by bench.load_file"
        )
    registry = next(name for name, value in vars(plugin).items() if value is interactive.registry)
    imports.add(f"from bench.plugin import {registry}")
    header = f'"""{label.capitalize()}, as a notebook defined it."""'
    end = f"{registry}.register({interactive.name!r})({interactive.item.__name__})"
    return "\n\n".join([header, "\n".join(sorted(imports)), *parts.values(), end]) + "\n"


def _collect(
    interactive: plugin.Interactive, value: Any, imports: set[str], parts: dict[str, str], refusals: set[str]
) -> None:
    """Add a class or function, after those of the notebook that it uses; what no file can hold goes to `refusals`."""
    source = _source(interactive, value)
    if source is None:
        refusals.add(value.__name__)
        return
    definitions = {*parts, value.__name__}
    parts |= dict.fromkeys([value.__name__], "")  # in case two use each other
    for name in sorted(_free_names(source, interactive.namespace) - definitions - set(dir(builtins))):
        item = interactive.namespace.get(name)
        if item is not None and (line := _import(name, item, interactive.namespace)):
            imports.add(line)
        elif isinstance(item, type | FunctionType) and _is_here(item.__module__):
            _collect(interactive, item, imports, parts, refusals)
        else:
            refusals.add(name)
    del parts[value.__name__]
    parts[value.__name__] = source


def _is_here(module: str) -> bool:
    """Whether a module is the notebook or the script that runs, which a file cannot import."""
    return module == "__main__" or plugin.is_interactive(module)


def _source(interactive: plugin.Interactive, value: Any) -> str | None:
    """The text of a class or function without its registration; None where Python does not keep it."""
    texts = [_lines(member) for member in (value, *vars(value).values()) if isinstance(member, FunctionType)]
    if value is interactive.item:
        texts.insert(0, "".join(interactive.lines))
    for text in (*texts, *_cells(interactive.namespace)):
        nodes = [node for node in _parse(text) if isinstance(node, Definition) and node.name == value.__name__]
        if nodes:
            return _segment(nodes[-1], text, interactive.namespace)
    return None


def _lines(function: FunctionType) -> str:
    return "".join(linecache.getlines(function.__code__.co_filename))


def _parse(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError:  # a cell with a notebook's own commands (%, !)
        return []


def _cells(namespace: dict[str, Any]) -> list[str]:
    """Texts that the session has run, the last first: IPython keeps a list, others a line cache; a script is a file."""
    if isinstance(file := namespace.get("__file__"), str):
        return ["".join(linecache.getlines(file))]
    cells = namespace.get("In")
    if isinstance(cells, list):
        return [str(cell) for cell in reversed(cells)]
    names = [name for name in linecache.cache if not Path(name).is_file()]
    return ["".join(linecache.getlines(name)) for name in reversed(names)]


def _segment(node: Definition, text: str, namespace: dict[str, Any]) -> str:
    decorator_nodes = [decorator for decorator in node.decorator_list if not _registers(decorator, namespace)]
    decorators = [f"@{ast.get_source_segment(text, decorator)}" for decorator in decorator_nodes]
    body = textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
    return "\n".join([*decorators, body])


def _registers(decorator: ast.expr, namespace: dict[str, Any]) -> bool:
    """Whether a decorator is `REGISTRY.register(...)` or `bench.metric(...)`."""
    match decorator:
        case ast.Call(func=ast.Attribute() | ast.Name() as function):
            try:
                value = eval(compile(ast.Expression(function), "<decorator>", "eval"), namespace)
            except (NameError, AttributeError):
                return False
            return value is plugin.metric or isinstance(getattr(value, "__self__", None), plugin.Registry)
    return False


def _free_names(source: str, namespace: dict[str, Any]) -> set[str]:
    """Names that a definition takes from its module.

    The body of a class may take a name that it then gives itself (`Hyper = Hyper`).
    """
    table = symtable.symtable(source, "<definition>", "exec")
    assigned = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    queue = list(table.get_children())
    while queue:
        inner = queue.pop()
        queue += inner.get_children()
        names |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
        if inner.get_type() == "class":
            rebound_names = {
                symbol.get_name() for symbol in inner.get_symbols() if symbol.is_assigned() and symbol.is_referenced()
            }
            names |= {name for name in rebound_names if isinstance(namespace.get(name), type | FunctionType)}
    return names - assigned - {"__name__", "__doc__"}


def _import(name: str, value: Any, namespace: dict[str, Any]) -> str:
    """The line that imports a value under a name, as the session did if it did; empty if nothing imports the value."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    statements = [node for cell in _cells(namespace) for node in _parse(cell) if isinstance(node, ast.ImportFrom)]
    lines = [
        (node.module, alias.name) for node in statements for alias in node.names if (alias.asname or alias.name) == name
    ]
    home = getattr(value, "__module__", None)
    for module, attribute in [*lines, (home, getattr(value, "__qualname__", name)), (home, name)]:
        if not isinstance(module, str) or _is_here(module):
            continue
        if getattr(sys.modules.get(module), attribute, None) is value:
            return f"from {module} import {attribute}" + ("" if attribute == name else f" as {name}")
    return ""
