"""Digests of what a cell uses of the user's: files by their content, code by its syntax.

A file is read once for each of its versions on the disk. Digests of code are equal in every version of Python and
wherever a package is installed.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.plugin import (
    ATTACKS,
    CHANNELS,
    DATASETS,
    FILE_MODULE,
    METHODS,
    METRICS,
    MODELS,
    PARTITIONS,
    SELECTIONS,
    SERVER_RULES,
    SHIFTS,
    Registry,
    is_external,
)
from bench.settings import Settings

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


Item = tuple[Registry[Any], str]
"""A registered item: its registry and its name."""


def used_items(settings: Settings) -> list[Item]:
    """Everything registered that a cell uses."""
    return [*method_and_rules(settings), *data_and_models(settings), *((METRICS, name) for name in settings.metrics)]


def method_and_rules(settings: Settings) -> list[Item]:
    """A cell's method, selection, server rule and channel operations."""
    rules = [] if settings.server is None else [(SERVER_RULES, settings.server["name"])]
    channel = [(CHANNELS, operation["name"]) for operation in settings.channel]
    return [(METHODS, settings.method), (SELECTIONS, settings.selection), *rules, *channel]


def data_and_models(settings: Settings) -> list[Item]:
    """A cell's data sets, partition, shifts, attack, which may change data, and models."""
    parts: list[Item] = [(DATASETS, settings.dataset), (PARTITIONS, settings.partition)]
    if settings.public is not None:
        parts.append((DATASETS, settings.public.name))
    later = [shift for change in settings.timeline for shift in change.shifts or ()]
    parts += [(SHIFTS, shift["name"]) for shift in (*settings.shifts, *later)]
    if settings.attack is not None:
        parts.append((ATTACKS, settings.attack["name"]))
    return parts + [(MODELS, name) for name in (settings.model, *settings.architectures)]


def is_own(registry: Registry[Any], name: str) -> bool:
    """Whether a registered item comes from outside the harness, so that `RESULT_VERSION` does not cover it."""
    return is_external(registry.declaration(name))


def own_code(items: Iterable[Item]) -> dict[tuple[str, str], str]:
    """Digests of the code of those items that are the user's own, by kind and name.

    Raises:
        UserError: an item is unknown or has no source file.
    """
    return {(registry.kind, name): code_digest(registry, name) for registry, name in items if is_own(registry, name)}


def code_digest(registry: Registry[Any], name: str) -> str:
    """Digest of the code of a method or another registered item, without comments, docstrings and formatting.

    It covers the syntax trees of the item's file and of all modules of `methods`, or of its own package, that it
    imports directly or indirectly.

    Raises:
        UserError: it is unknown or has no source file.
    """
    item = registry.get(name)
    try:
        file = inspect.getsourcefile(item)
    except TypeError:
        file = None
    if not file:
        raise UserError(f"{registry.kind} {name!r} has no source file, so that its results cannot be told from others'")
    files = sources(item.__module__, Path(file))
    # sorted by name but without the names, so that it has no effect where a package is installed or imported from
    return digest(json.dumps([_tree(*version(files[module])) for module in sorted(files)]))


def sources(module: str, file: Path) -> dict[str, Path]:
    """The files of a module's code, by module name: its own file and those of modules that it imports, even indirectly.

    Only imports from `methods`, from its own package and, for a plug-in file, from the file's folder count.
    """
    roots = {"methods", module.partition(".")[0]}
    if module.startswith(FILE_MODULE):
        roots |= {path.stem for path in file.parent.iterdir()}
    files: dict[str, Path] = {module: file}
    queue = [module]
    while queue:
        importer = queue.pop()
        for imported in _imports(*version(files[importer]), importer):
            source = _source(imported) if imported.partition(".")[0] in roots and imported not in files else None
            if source:
                files[imported] = source
                queue.append(imported)
    return files


def _parse(path: Path, mtime: int, size: int) -> ast.Module:
    return ast.parse(path.read_bytes())


@functools.cache  # without a limit: a package may have more files than the usual 128, which are read in turn
def _tree(path: Path, mtime: int, size: int) -> str:
    return digest(json.dumps(_plain(_parse(path, mtime, size))))


def _plain(node: Any) -> Any:
    """A syntax tree as lists and text, because `ast.dump` differs between versions of Python.

    Empty fields are left out, because newer versions add some.
    """
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value is not None and value != []}
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            fields["body"] = _plain(node.body[1:])
        return [type(node).__name__, fields]
    return [_plain(child) for child in node] if isinstance(node, list) else repr(node)


@functools.cache
def _imports(path: Path, mtime: int, size: int, module: str) -> tuple[str, ...]:
    """Names of the modules that a file may import; `from a import b` gives both `a` and `a.b`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(_parse(path, mtime, size)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(names)


def _source(module: str) -> Path | None:
    """The source file of a module, found without importing it; None if there is none."""
    root, *parts = module.split(".")
    spec = importlib.util.find_spec(root)
    if spec and not parts and spec.submodule_search_locations is None and str(spec.origin).endswith(".py"):
        return Path(str(spec.origin))
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, *parts)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def digest(text: str) -> str:
    """Digest of a text, 16 hex digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def content(path: Path) -> str:
    """Digest of a file, or of a folder's files and their names; if nothing is there, `absent:` with the path."""
    if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        return f"absent:{path}"
    files = sorted(_files(path)) if path.is_dir() else [path]
    names = [file.relative_to(path).as_posix() for file in files]
    return digest(json.dumps([names, [_file_digest(*version(file)) for file in files]]))


def versions(path: Path, depth: float = math.inf) -> tuple[tuple[Path, int, int], ...]:
    """The versions of a file, or of all files below a folder down to `depth` levels; of nothing if none can be read."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a text that is no path
        return tuple(map(version, _files(path, depth) if path.is_dir() else [path]))
    return ()


def version(path: Path) -> tuple[Path, int, int]:
    """The place, time of the last change and size of a file, which distinguish its versions without reading it.

    Tools that unpack or copy may set the time of modification back; that of the change of status they cannot.
    """
    stat = path.stat()
    return path.absolute(), max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size


def _files(folder: Path, depth: float = math.inf, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below a folder. Links are followed, as loaders do, except those that lead back to a folder above."""
    place = folder.resolve()
    if place in above or len(above) >= depth:
        return
    with os.scandir(folder) as entries:  # asks the system once for each entry, where a path would ask twice
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path), depth, (*above, place))
            elif entry.is_file():
                yield Path(entry.path)


@functools.lru_cache(maxsize=100_000)
def _file_digest(path: Path, mtime: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
