"""The code that a cell uses, and its digests: equal in every version of Python and wherever a package is installed."""

import ast
import functools
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

from bench.config.file_digests import digest, version
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
    REGISTRIES,
    SELECTIONS,
    SERVER_RULES,
    SHIFTS,
    Registry,
)
from bench.settings import Settings

_PACKAGES = ("bench", "methods", "datasets", "sweeps", "reports")
_MOVED = {
    "112334a27b096969": "950916c7ab487969",  # scd: transforms from spectrum.py to frequencies.py and bench/dft.py
    "341d89427ce62b13": "c7211678b3dc013d",  # lga: to leaps.py; who comes back has _LEAP_VERSION (identity.py)
    "c6be863e4b345c5c": "235376e276a478c5",  # spfl: the mixing of models to mixing.py
    "08522d88fd0e301c": "4fe52c2c9cf9897e",  # fedrod: the losses to two_heads.py
    "7f06a253bd89ba7b": "7b6cede4aa7fbdf8",  # knnper: a client's labels to labels.py
    "2d5d3104880528d2": "d61d6c88ed9a8dde",  # pgfed: the expansions and steps to expansions.py
    "76c246fb1e08c50a": "67b984c1efbaa3f6",  # selections: `poisson` has come to stand beside them
    "fb1f097f53a23de4": "50244bcf0416fd10",  # fedmtl: the singular values of W in place of the roots of W W^T's
    "a76c1be599b477f7": "2ca28f4de8c2906e",  # ccvr: eigenvectors on the processor, whose bytes are the same
    "79cd7e4089e7a137": "4155d31748f959dd",  # fedala: the mixture is joined of its layers, with the same bytes
    "e3774fffced9a642": "dc3c453884f3909d",  # fedas: the engine freezes statistics; with BatchNorm: _WHOLE_VERSIONS
    "53b85fdc9fa09038": "8c0a4cb5bec31937",  # elastic: likewise
    "a4aa5db0b869ef17": "f0319c556582eafc",  # fedselect: moves of rounding errors only are none
    "260ae31e21f7e3ac": "c56506ffa781c2ed",  # floco: of equally large entries the first has the sign
}
"""Digests of code that only moved to another file, or computes the same bytes in another way, each with the digest from
before, which its cells keep. If the code changes later, its digest changes too, and the entry has no effect then."""
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def used_code(settings: Settings) -> dict[tuple[str, str], str]:
    """Digests of the code of all that a cell uses of the user's own, by kind and name. The rest is part of the harness,
    which has a digest of its own (`bench.store.provenance.harness_code`).

    Raises:
        UserError: an item is unknown or has no source file.
    """
    return {
        (registry.kind, name): code_digest(registry, name)
        for registry, name in _used(settings)
        if is_own(registry, name)
    }


def used_items(settings: Settings) -> set[tuple[str, str]]:
    """Kind and name of everything registered that a cell uses."""
    return {(registry.kind, name) for registry, name in _used(settings)}


def _used(settings: Settings) -> list[tuple[Registry[Any], str]]:
    return [*method_and_rules(settings), *data_and_models(settings), *((METRICS, name) for name in settings.metrics)]


def method_and_rules(settings: Settings) -> list[tuple[Registry[Any], str]]:
    """A cell's method, selection, server rule and channel operations: each one's registry and name."""
    rules = [] if settings.server is None else [(SERVER_RULES, settings.server["name"])]
    return [(METHODS, settings.method), (SELECTIONS, settings.selection), *rules, *_channel(settings)]


def _channel(settings: Settings) -> list[tuple[Registry[Any], str]]:
    return [(CHANNELS, operation["name"]) for operation in settings.channel]


def data_and_models(settings: Settings) -> list[tuple[Registry[Any], str]]:
    """A cell's data sets, partition, shifts, attack, which may change data, and models: each registry and name."""
    parts: list[tuple[Registry[Any], str]] = [(DATASETS, settings.dataset), (PARTITIONS, settings.partition)]
    if settings.public is not None:
        parts.append((DATASETS, settings.public.name))
    later = [shift for change in settings.timeline for shift in change.shifts or ()]
    parts += [(SHIFTS, shift["name"]) for shift in (*settings.shifts, *later)]
    if settings.attack is not None:
        parts.append((ATTACKS, settings.attack["name"]))
    return parts + [(MODELS, name) for name in (settings.model, *settings.architectures)]


def is_own(registry: Registry[Any], name: str) -> bool:
    """Whether a registered item comes from outside the harness, so that `RESULT_VERSION` does not cover it."""
    return registry.get(name).__module__.partition(".")[0] not in _PACKAGES


def own_code(settings: Settings) -> dict[str, str]:
    """Digests of the code of the user's own data sets, partition, shifts, attack, models and channel operations, by
    kind and name."""
    parts = [*data_and_models(settings), *_channel(settings)]
    return {
        f"{registry.kind} {name}": code_digest(registry, name) for registry, name in parts if is_own(registry, name)
    }


def code_of(kind: str, name: str) -> str:
    """Digest of the code of one item of `used_code`.

    Raises:
        UserError: it is unknown or has no source file.
    """
    return code_digest(next(registry for registry in REGISTRIES if registry.kind == kind), name)


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
        raise UserError(
            f"{registry.kind} {name!r} has no source file, so its results could not be told from those of other code"
        )
    files = sources(item.__module__, Path(file))
    # sorted by name but without the names, so that it has no effect where a package is installed or imported from
    trees = digest(json.dumps([_tree(*version(files[module])) for module in sorted(files)]))
    return _MOVED.get(trees, trees)


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
