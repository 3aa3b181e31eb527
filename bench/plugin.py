"""Registration of methods, data sets, partitions, shifts, models, server rules, selections, channels, attacks, metrics.

Those of pFLeague are in the packages beside this one. Others come from entry-point groups, `bench.methods`,
`bench.serverrules` and so on, or from a file given by `--plugin FILE.py` or under `plugins:` in a grid.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import os
import shlex
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from bench.declared import declarations, import_all, read_without_torch, refuse_hidden
from bench.errors import UserError, did_you_mean, in_words, refusing_exits
from bench.places import check_file

Product = TypeVar("Product")
T = TypeVar("T", bound=Callable[..., Any])
F = TypeVar("F", bound=Callable[..., Any])

FROM_THE_HARNESS = {
    "data_root", "download", "dataset", "clients", "alpha", "fixed_tests", "seed", "own", "shape", "classes",
}  # fmt: skip
"""Parameters of factories that are no options: the harness gives them."""
LISTED = 30
"""Largest number of known names in a message; if there are more, the message says how to list them."""
OURS = ("bench", "datasets", "methods")
"""The packages whose factories are part of pFLeague."""


def is_interactive(module: str) -> bool:
    """Whether a module is no file: a notebook, a prompt, or what was given to `exec`."""
    return not getattr(sys.modules.get(module), "__file__", None) and module not in sys.builtin_module_names


@dataclass
class Interactive:
    """A factory defined in a notebook or at a prompt, or by the script that runs (`bench.runs.interactive`).

    Attributes:
        namespace: the global names of the notebook or script.
        lines: of the notebook's cell that registered it; empty where Python does not keep them.
        file: what it, or an earlier definition of that name, was saved as and loaded from.
    """

    registry: "Registry[Any]"
    name: str
    item: Any
    namespace: dict[str, Any]
    lines: list[str]
    file: Path | None = None

    def load(self, file: Path) -> None:
        """Load the factory from the file that it was saved as, in place of the notebook's object and earlier files."""
        path = file.resolve()
        if self.file in _FILES:
            del sys.modules[_FILES.pop(self.file).__name__]
        self.registry.drop(self.name)
        load_file(path)
        self.file = path


INTERACTIVE: dict[tuple[str, str], Interactive] = {}
"""What this session defined in a notebook, at a prompt or in its script, by kind and name."""


class Registry(Generic[T]):
    """Named factories of one kind. Loading is lazy: the first `get` imports the package and the entry points.

    Names and declarations are known without that, because for our own packages it takes torch and so seconds.

    A factory registered as `PACKAGE/*` stands for all names of that package, such as `timm/vit_tiny_patch16_224`. It is
    called with the part after the slash before all other arguments, and all options are passed to it unchecked.

    Attributes:
        classes: whether entries are classes, which declare what may be set in a class `Hyper`; else they are functions.
        entry_points: whether other packages' entry points are imported, in all registries of this process.
        generation: how often a name of any registry was given to another factory in this process, as a notebook does
            when its cell runs again. What this process keeps of the earlier one's networks must not serve the later's.
    """

    entry_points: ClassVar[bool] = True
    generation: ClassVar[int] = 0

    def __init__(self, kind: str, package: str, *, classes: bool = False) -> None:
        self.kind = kind
        self.package = package
        self.classes = classes
        self._items: dict[str, T] = {}
        self._latest: dict[str, T] = {}  # with those that were dropped
        self._offers: dict[tuple[str, str], Any] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers the factory under `name`.

        Raises:
            UserError: another factory has this name already.
        """

        def add(item: T) -> T:
            entry = self._items.get(name)
            definition = INTERACTIVE.get((self.kind, name))
            if is_interactive(item.__module__) and (entry is None or definition):
                frame = sys._getframe(1)
                lines = linecache.getlines(frame.f_code.co_filename)
                file = definition.file if definition else None
                INTERACTIVE[self.kind, name] = Interactive(self, name, item, frame.f_globals, lines, file)
            elif entry is not None and (entry.__module__, entry.__qualname__) != (item.__module__, item.__qualname__):
                both = f"{entry.__module__} and {item.__module__}"
                raise UserError(f"{self.kind} {name!r} is registered twice, by {both}: give yours another name")
            self._put(name, item)
            return item

        return add

    def options(self, name: str) -> type[BaseModel]:
        """The model of an entry's options: a class's `Hyper`, or a factory's parameters, each under its own name.

        Raises:
            UserError: the name is unknown.
        """
        entry: Any = self.declaration(name)
        kind: type[BaseModel] = getattr(entry, "Hyper", _NoHyperparameters) if self.classes else _options_class(entry)
        return kind

    def offer(self, name: str, what: str) -> Callable[[F], F]:
        """Decorator of a function that the entry `name` offers beside its factory, under a name that `offered` takes:
        so the harness reaches what only some data sets have without an import of their modules."""

        def add(function: F) -> F:
            self._offers[name, what] = function
            return function

        return add

    def offered(self, name: str, what: str) -> Any:
        """The function that an entry offers; None if it offers none of that name."""
        self._load()
        return self._offers.get((name, what))

    def name_of(self, item: T) -> str:
        """The name of a factory. A class that the notebook or script defined without a decorator is registered under
        its own name in lower case.

        Raises:
            UserError: it is of another module and not registered there, or another factory has the name.
        """
        names = [name for (kind, name), known in INTERACTIVE.items() if kind == self.kind and known.item is item]
        names += [name for name, known in self._items.items() if known is item]
        if names:
            return names[0]
        name, label = item.__name__.lower(), f"{self.kind} {item.__name__}"
        if item.__module__ != "__main__" and not is_interactive(item.__module__):
            raise UserError(f"{label} of {item.__module__} is not registered: put `.register({name!r})` above it there")
        before = INTERACTIVE.get((self.kind, name))
        if before is None and name in self.names():
            raise UserError(f"{label}: there is a {self.kind} {name!r} already: give yours another name")
        namespace = vars(sys.modules[item.__module__])
        INTERACTIVE[self.kind, name] = Interactive(self, name, item, namespace, [], before.file if before else None)
        self._put(name, item)
        return name

    def drop(self, name: str) -> None:
        """Forget a factory, so that another one can have its name."""
        self._items.pop(name, None)

    def _put(self, name: str, item: T) -> None:
        Registry.generation += self._latest.get(name, item) is not item
        self._items[name] = self._latest[name] = item

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._declared())

    def declaration(self, name: str) -> T:
        """The factory of that name, to look at but not to call: its signature, hyperparameters, docstring.

        Raises:
            UserError: the name is unknown; the message suggests the most similar known one.
        """
        return self._lookup(self._declared(), name)

    def get(self, name: str) -> T:
        """The factory of that name; raises as `declaration` does."""
        self._load()
        return self._lookup(self._items, name)

    def package_of(self, name: str) -> str | None:
        """The package that a name `PACKAGE/NAME` is of; None for a name that is registered itself."""
        return _package(self._declared(), name)

    def _declared(self) -> Mapping[str, T]:
        """All items, read without torch if nothing but our own packages has any."""
        if not self._loaded and read_without_torch() and not self._entry_points():
            return ChainMap(self._items, declarations(self.package)[self.kind])
        self._load()
        return self._items

    def _lookup(self, items: Mapping[str, T], name: str) -> T:
        if package := _package(items, name):
            return items[f"{package}/*"]
        if name not in items:
            names = sorted(items)
            remedy = (
                f"One of your own: `.register({name!r})` before it, and its file as `--plugin FILE.py` or in the grid "
                "as `plugins: [FILE.py]`."
            )
            listing = f" Known: {', '.join(names)}."
            if len(names) > LISTED:  # too long a line to read
                listing = f" `bench {self.kind.replace(' ', '')}s` lists all {len(names)}."
            raise UserError(f"unknown {self.kind} {name!r}.{did_you_mean(name, names)}{listing} {remedy}")
        return items[name]

    def _entry_points(self) -> Iterable[importlib.metadata.EntryPoint]:
        """Entry points of other installed packages; none where `entry_points` is off."""
        return _entry_points(f"bench.{self.kind.replace(' ', '')}s") if Registry.entry_points else ()

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # set before the imports, as a module may look up other names while it registers its own
        import_all(self.package)
        for entry in self._entry_points():
            with refusing_exits():
                entry.load()


class _NoHyperparameters(BaseModel):
    """The hyperparameter class of entries that declare none."""


@functools.cache
def _options_class(factory: Callable[..., Any]) -> type[BaseModel]:
    """The options of a function as a model; a field's name has a mark at its end, as `copy` or `json` could be none."""
    catch_all = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if name not in FROM_THE_HARNESS and parameter.kind not in catch_all:
            kind = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"{name}_"] = kind, Field(default, alias=name)
    config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)
    return create_model("Options", __config__=config, __module__=factory.__module__, **fields)


def _package(items: Mapping[str, Any], name: str) -> str | None:
    package = name.partition("/")[0]
    return package if name not in items and f"{package}/*" in items else None


@functools.cache
def _entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of a group, which take milliseconds to find."""
    return tuple(importlib.metadata.entry_points(group=group))


def is_external(factory: Callable[..., Any]) -> bool:
    """Whether a registered factory is from a user or another package; its errors are then reported to its author."""
    return factory.__module__.partition(".")[0] not in OURS


def file_of(factory: Callable[..., Any]) -> str | None:
    """The file that a registered factory is defined in; None in a notebook."""
    return getattr(sys.modules.get(factory.__module__), "__file__", None)


def call_factory(what: str, kind: type[Product], factory: Callable[..., Any], /, *args: Any, **options: Any) -> Product:
    """Call a registered factory and return its result.

    Args:
        what: its name in messages, for instance "data set 'mine'".
        kind: the type that it should return.
        factory: the factory; it is called with all further arguments, which may have any names, `kind` among them.

    Raises:
        UserError: raised by the factory; or a user's factory raised another error, and the message says where; or the
            result has another type.
    """
    try:
        with refusing_exits():
            product = factory(*args, **options)
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        if not is_external(factory):
            raise
        raise UserError(f"{what} failed: {in_words(error, file_of(factory))}") from error
    if not isinstance(product, kind):
        raise UserError(f"{what} returned {type(product).__name__}; it should return a {kind.__name__}")
    return product


METHODS: Registry[Any] = Registry("method", "methods", classes=True)
DATASETS: Registry[Any] = Registry("data set", "datasets")
PARTITIONS: Registry[Any] = Registry("partition", "datasets")
SHIFTS: Registry[Any] = Registry("shift", "datasets")
MODELS: Registry[Any] = Registry("model", "bench.models")
SERVER_RULES: Registry[Any] = Registry("server rule", "methods", classes=True)
SELECTIONS: Registry[Any] = Registry("selection", "methods")
CHANNELS: Registry[Any] = Registry("channel", "bench.channel", classes=True)
ATTACKS: Registry[Any] = Registry("attack", "bench.attacks", classes=True)
METRICS: Registry[Any] = Registry("metric", "bench.metrics")
REGISTRIES = (METHODS, DATASETS, PARTITIONS, SHIFTS, MODELS, SERVER_RULES, SELECTIONS, CHANNELS, ATTACKS, METRICS)


PUBLISHED: dict[str, Path] = {}
"""The file of each printed table by the table's id, which `reports.published` registers when it is imported."""


def published_tables() -> list[str]:
    """Ids of the printed tables that a grid may ask to be compared with; none where the reports are not installed."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("reports.published")
    return list(PUBLISHED)


def metric(name: str) -> Callable[[T], T]:
    """Decorator that registers a score of your own, which a grid then lists under `metrics` (docs/scores.md).

    The function takes `labels [n]` (integers) and `logits [n, classes]` (float64), both NumPy arrays, of one client's
    samples or of all samples together, and returns a number. A larger one is better where it chooses a round
    (`select_by`); nan says that the samples do not define it. It is no part of a cell's id.

    Example:
        >>> @bench.metric("top5")
        ... def top5(labels, logits):
        ...     return (logits.argsort(1)[:, -5:] == labels[:, None]).any(1).mean()

    Raises:
        UserError: another metric has this name already.
    """
    return METRICS.register(name)


FILE_MODULE = "plugin_"
"""Prefix of the module name of a plug-in file."""
_FILES: dict[Path, ModuleType] = {}


def load_file(file: Path | str) -> ModuleType:
    """Import a Python file that registers methods, data sets, partitions, shifts or models; once per process.

    The file may import modules from its own folder.

    Raises:
        UserError: there is no such file, it cannot be imported, or another module has the name of one beside it.
    """
    path = Path(os.path.realpath(file))  # `resolve` raises an error of its own for a link to itself
    if path in _FILES:
        return _FILES[path]
    check_file(Path(file))
    name = f"{FILE_MODULE}{path.stem}"
    while name in sys.modules:  # another folder has a file of the same name
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file: its name must end in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        refuse_hidden(path)
        with refusing_exits():
            spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        raise UserError(f"{file} cannot be imported: {in_words(error, str(path))}") from error
    _FILES[path] = module
    return module


_ALLOWED: ContextVar[Callable[[Path], bool]] = ContextVar("plug-ins that a grid may load", default=lambda path: True)


@contextlib.contextmanager
def allow(allowed: Callable[[Path], bool]) -> Iterator[None]:
    """Let grids load only those plug-ins in this block whose real path `allowed` takes, or that the user named before.

    Loading a file runs its code, which a user who only looks at a grid does not expect.
    """
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def is_near(path: Path) -> bool:
    """Whether a file lies under the working folder."""
    return path.is_relative_to(Path.cwd().resolve())


def load_named(file: str) -> ModuleType:
    """Load a plug-in that a grid names.

    Raises:
        UserError: there is no such file, it cannot be imported, or it may not be loaded here (`allow`).
    """
    path = Path(os.path.realpath(file))
    if path not in _FILES and not _ALLOWED.get()(path):
        raise UserError(f"the plug-in {file} may hold any code: if you trust it: --plugin {shlex.quote(file)}")
    return load_file(file)


def loaded_files() -> tuple[Path, ...]:
    """The plug-in files that this process has loaded; its workers must load them too."""
    return tuple(_FILES)


def loaded_modules() -> tuple[tuple[str, Path], ...]:
    """Module name and path of each plug-in file that this process has loaded."""
    return tuple((module.__name__, path) for path, module in _FILES.items())
