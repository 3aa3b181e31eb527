"""The identity of a cell: a hash of everything that its result depends on, and of nothing else.

It covers the scientific settings, the declared data, and the code of the method, of its server rule and selection, and
of the user's own data sets, partitions, shifts and models. It leaves out the cell's names (label, case), the paths of
its files, and the machine. `RESULT_VERSION` covers the engine, the libraries and everything else in the harness.
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
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from bench.errors import UserError
from bench.plugin import DATASETS, FILE_MODULE, METHODS, MODELS, PARTITIONS, SELECTIONS, SERVER_RULES, SHIFTS, Registry
from bench.settings import DEFAULT_SELECTION, Settings

RESULT_VERSION = 3
"""Raised by hand when a change of the engine, the data sets or the models changes results."""
_PRECISION_VERSIONS = {"bf16": 2}  # since 2, models are evaluated in bf16, too
"""The same for cells of one precision, raised when a change affects no others; these keep their ids."""

NORMALISED = "normalised"
"""Part of the checksum of data with floating inputs: since it is, they are normalised, as bytes always were."""
_FLOATING = ("har", "motion", "pamap2")
"""Built-in data sets with floating inputs, besides `npz`, which may have some, and `synthetic`, whose inputs stay."""

_PACKAGES = ("bench", "methods", "datasets", "sweeps", "reports")
_LATER: dict[str, dict[str, Any]] = {"image_folder": {"groups": False}}
"""Options added to data sets later, each with the value that means the old behaviour; its cells keep their ids."""
_MOVED = {
    "112334a27b096969": "950916c7ab487969",  # scd: transforms from spectrum.py to frequencies.py and bench/dft.py
    "908f08fe90d9336e": "c7211678b3dc013d",  # lga: the estimate of a late model to leaps.py
    "c6be863e4b345c5c": "235376e276a478c5",  # spfl: the mixing of models to mixing.py
    "08522d88fd0e301c": "4fe52c2c9cf9897e",  # fedrod: the losses to two_heads.py
    "7f06a253bd89ba7b": "7b6cede4aa7fbdf8",  # knnper: a client's labels to labels.py
    "2d5d3104880528d2": "d61d6c88ed9a8dde",  # pgfed: the expansions and steps to expansions.py
}
"""Digests of code that only moved to another file, each with the digest from before the move, which its cells keep. If
the code changes later, its digest changes too, and the entry here has no effect any more."""
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def cell_id(settings: Settings, data_checksum: str) -> str:
    """Identity of a cell, 16 hex digits.

    Args:
        settings: settings with complete hyperparameters and options, as `bench.config.grid.load_grid` returns them.
        data_checksum: the result of `declared_checksum`.

    Raises:
        UserError: the method, its server rule or its selection is unknown or has no source file.
    """
    science = _science(settings)
    if path := science["partition_options"].get("path"):
        science["partition_options"]["path"] = content(Path(path))
    if settings.pretrained is not None:
        science["pretrained"] = content(Path(settings.pretrained))
    identity = {
        "settings": science,
        "data": data_checksum,
        "code": method_code(settings.method),
        "version": RESULT_VERSION,
    }
    if settings.server is not None:
        identity["rule"] = _code(SERVER_RULES, settings.server["name"])
    if settings.selection != DEFAULT_SELECTION:
        identity["selection"] = _code(SELECTIONS, settings.selection)
    if own := _own_code(settings):
        identity["own"] = own
    if settings.precision in _PRECISION_VERSIONS:
        identity["precision_version"] = _PRECISION_VERSIONS[settings.precision]
    return _digest(json.dumps(identity, sort_keys=True, allow_nan=False))


def may_be_same(one: Settings, other: Settings) -> bool:
    """Whether two settings may be those of one cell: all is the same but for names and the paths of files.

    Neither files nor code are read, so that settings from somebody else can be compared.
    """
    if one == other:
        return True
    both = [_science(settings) for settings in (one, other)]
    for science in both:
        if "path" in science["partition_options"]:
            science["partition_options"]["path"] = "a file"
        if "pretrained" in science:
            science["pretrained"] = "a file"
    return json.dumps(both[0], sort_keys=True) == json.dumps(both[1], sort_keys=True)


def _science(settings: Settings) -> dict[str, Any]:
    """The settings that identify a cell, in plain values, with the paths of files that others hash."""
    science = settings.model_dump(mode="json", exclude={"label", "case"})
    if science["partition_seed"] is None:
        science["partition_seed"] = science["seed"]
    if settings.optimizer.name == "sgd":
        del science["optimizer"]  # so that cells from before this setting existed keep their ids
    _drop_unidentifying(science["dataset"], science["dataset_options"])
    if science["public"]:
        _drop_unidentifying(science["public"]["name"], science["public"])
    if science["partition"] == "file" and settings.dataset_options.get("path"):
        science["partition_options"]["counts"] = (
            "rows of the user's file"  # formerly, positions of samples after the test part was cut off
        )
    if settings.pretrained is None:
        del science["pretrained"]  # so that cells from before this setting existed keep their ids
    if not settings.frozen:
        del science["frozen"]  # likewise
    if settings.selection == DEFAULT_SELECTION:
        del science["selection"]  # likewise
    if not settings.shifts:
        del science["shifts"]  # likewise
    if settings.new_client_start == "method":
        del science["new_client_start"]  # likewise
    return science


def _drop_unidentifying(dataset: str, options: dict[str, Any]) -> None:
    """Remove the options of a data set that must not change a cell's identity."""
    options.pop("path", None)  # the checksum covers the file's content
    for key, before in _LATER.get(dataset, {}).items():
        if options.get(key) == before:
            del options[key]


def declared_checksum(settings: Settings) -> str:
    """Checksum of a cell's data, computed without loading them.

    A data set with an option `path` is the user's own: the checksum is that of the file's content (of names and
    contents, for a folder), or of the path if there is no such file. For all other data sets it is the name, because
    their loaders verify the files that they read. `NORMALISED` follows where inputs are floating.
    """
    found = [_declared(settings.dataset, settings.dataset_options)]
    if settings.public is not None:
        found.append(_declared(settings.public.name, settings.public.options))
    return " ".join(found)


def _declared(name: str, options: dict[str, Any]) -> str:
    path = options.get("path")
    if not path:
        known, reading, floating = f"declared:{name}", "", name in _FLOATING
    else:
        file, known = Path(path), content(Path(path))
        reading = _reading(name, json.dumps(options, sort_keys=True), known)
        floating = name in _FLOATING or (name == "npz" and file.is_file() and _holds_floats(*_version(file)))
    normalised = NORMALISED if floating and changes_inputs(options.get("mean"), options.get("std")) else ""
    return " ".join(filter(None, (known, normalised, reading)))


@functools.lru_cache(maxsize=1000)
def _reading(name: str, options: str, digest: str) -> str:
    """What our loader reads in a user's file otherwise than its first version did, by its module's `reading`.

    Those cells get new ids. Of a file that cannot be read, nothing: loading it says why. `options` are JSON; `digest`
    identifies the file's version in the cache.
    """
    reading = getattr(inspect.getmodule(DATASETS.get(name)), "reading", None)
    if reading is None or is_own(DATASETS, name):
        return ""
    with contextlib.suppress(Exception):
        return str(reading(json.loads(options)))
    return ""


def changes_inputs(mean: Sequence[float] | None, std: Sequence[float] | None) -> bool:
    """Whether normalising with them changes inputs; None: they are computed from the data."""
    return mean is None or std is None or any(mean) or any(one != 1 for one in std)


@functools.lru_cache
def _holds_floats(path: Path, mtime: int, size: int) -> bool:
    """Whether the samples of an .npz file are floating numbers, by the headers of its arrays; no, if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in {"train_images.npy", "train_series.npy"}.intersection(archive.namelist()):
                with archive.open(name) as array:
                    short = npy.read_magic(array) == (1, 0)
                    header = npy.read_array_header_1_0(array) if short else npy.read_array_header_2_0(array)
                    return bool(header[2].kind == "f")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        pass  # its loader says what is wrong
    return False


def method_code(name: str) -> str:
    """Digest of a method's code, without comments, docstrings and formatting.

    It covers the syntax trees of the method's file and of all modules of `methods`, or of its own package, that it
    imports directly or indirectly.

    Raises:
        UserError: the method is unknown or has no source file.
    """
    return _code(METHODS, name)


def is_own(registry: Registry[Any], name: str) -> bool:
    """Whether a registered item comes from outside the harness, so that `RESULT_VERSION` does not cover it."""
    return registry.get(name).__module__.partition(".")[0] not in _PACKAGES


def used_code(settings: Settings) -> dict[tuple[str, str], str]:
    """Digests of the code of a cell's method, rule, selection, data, partition, shifts and models, by kind and name.

    Raises:
        UserError: one of them is unknown or has no source file.
    """
    return {(registry.kind, name): _code(registry, name) for registry, name in _used(settings)}


def used_items(settings: Settings) -> set[tuple[str, str]]:
    """Kind and name of everything registered that a cell uses."""
    return {(registry.kind, name) for registry, name in _used(settings)}


def _used(settings: Settings) -> list[tuple[Registry[Any], str]]:
    return [*method_and_rules(settings), *data_and_models(settings)]


def method_and_rules(settings: Settings) -> list[tuple[Registry[Any], str]]:
    """A cell's method, selection and server rule: each one's registry and name."""
    rules = [] if settings.server is None else [(SERVER_RULES, settings.server["name"])]
    return [(METHODS, settings.method), (SELECTIONS, settings.selection), *rules]


def code_of(kind: str, name: str) -> str:
    """Digest of the code of one item of `used_code`.

    Raises:
        UserError: it is unknown or has no source file.
    """
    registries = (METHODS, SELECTIONS, SERVER_RULES, DATASETS, PARTITIONS, SHIFTS, MODELS)
    return _code(next(one for one in registries if one.kind == kind), name)


def _own_code(settings: Settings) -> dict[str, str]:
    """Digests of the code of the user's own data sets, partition, shifts and models, by kind and name."""
    parts = data_and_models(settings)
    return {f"{registry.kind} {name}": _code(registry, name) for registry, name in parts if is_own(registry, name)}


def data_and_models(settings: Settings) -> list[tuple[Registry[Any], str]]:
    """A cell's data sets, partition, shifts and models: each one's registry and name."""
    parts: list[tuple[Registry[Any], str]] = [(DATASETS, settings.dataset), (PARTITIONS, settings.partition)]
    if settings.public is not None:
        parts.append((DATASETS, settings.public.name))
    parts += [(SHIFTS, shift["name"]) for shift in settings.shifts]
    return parts + [(MODELS, name) for name in (settings.model, *settings.architectures)]


def _code(registry: Registry[Any], name: str) -> str:
    item = registry.get(name)
    try:
        file = inspect.getsourcefile(item)
    except TypeError:
        file = None
    if not file:
        raise UserError(
            f"{registry.kind} {name!r} has no source file, so its results could not be told from those of other code"
        )
    found = sources(item.__module__, Path(file))
    # sorted by name but without the names, so that it has no effect where a package is installed or imported from
    digest = _digest(json.dumps([_tree(*_version(found[module])) for module in sorted(found)]))
    return _MOVED.get(digest, digest)


def sources(module: str, file: Path) -> dict[str, Path]:
    """The files of a module's code, by module name: its own file and those of modules that it imports, even indirectly.

    Only imports from `methods`, from its own package and, for a plug-in file, from the file's folder count.
    """
    roots = {"methods", module.partition(".")[0]}
    if module.startswith(FILE_MODULE):
        roots |= {path.stem for path in file.parent.iterdir()}
    found: dict[str, Path] = {module: file}
    queue = [module]
    while queue:
        one = queue.pop()
        for imported in _imports(*_version(found[one]), one):
            source = _source(imported) if imported.partition(".")[0] in roots and imported not in found else None
            if source:
                found[imported] = source
                queue.append(imported)
    return found


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def content(path: Path) -> str:
    """Digest of a file, or of a folder's files and their names; if nothing is there, `absent:` with the path."""
    if not path.exists():
        return f"absent:{path}"
    files = sorted(_files(path)) if path.is_dir() else [path]
    names = [file.relative_to(path).as_posix() for file in files]
    return _digest(json.dumps([names, [_file_digest(*_version(file)) for file in files]]))


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


def versions(path: Path, depth: float = math.inf) -> tuple[tuple[Path, int, int], ...]:
    """The versions of a file, or of all files below a folder down to `depth` levels; of nothing if none can be read."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a text that is no path
        return tuple(map(_version, _files(path, depth) if path.is_dir() else [path]))
    return ()


def _version(path: Path) -> tuple[Path, int, int]:
    """The place, time of the last change and size of a file, which distinguish its versions without reading it.

    Tools that unpack or copy may set the time of modification back; that of the change of status they cannot.
    """
    stat = path.stat()
    return path.absolute(), max(stat.st_mtime_ns, stat.st_ctime_ns), stat.st_size


@functools.lru_cache(maxsize=100_000)
def _file_digest(path: Path, mtime: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@functools.lru_cache
def _parse(path: Path, mtime: int, size: int) -> ast.Module:
    return ast.parse(path.read_bytes())


@functools.lru_cache
def _tree(path: Path, mtime: int, size: int) -> str:
    return _digest(json.dumps(_plain(_parse(path, mtime, size))))


def _plain(node: Any) -> Any:
    """A syntax tree as lists and text, because `ast.dump` differs between versions of Python.

    Empty fields are left out, because newer versions add some.
    """
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value is not None and value != []}
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            fields["body"] = _plain(node.body[1:])
        return [type(node).__name__, fields]
    return [_plain(one) for one in node] if isinstance(node, list) else repr(node)


@functools.lru_cache
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
