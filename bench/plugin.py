"""Registration of methods, data sets, partitions, shifts and models, ours and other people's.

Ours are found in the packages beside this one, other people's through the entry-point groups `bench.methods`,
`bench.datasets`, `bench.partitions`, `bench.shifts`, `bench.models`, `bench.serverrules` and `bench.selections`, or in
a file that is named by `--plugin FILE.py` or under `plugins:` in a grid; each registers itself by decorator:

    @METHODS.register("fedavg")
    class FedAvg(Method): ...
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from bench.errors import UserError, in_words

Made = TypeVar("Made")
T = TypeVar("T", bound=Callable[..., Any])

LISTED = 30
"""So many known names stand in a message; of more it says how to list them."""
OURS = ("bench", "datasets", "methods")
"""The packages whose factories are pFLeague's."""


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


class Registry(Generic[T]):
    """Named factories of one kind. Loading is lazy: the first look-up imports the package and the entry points."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._items: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: make the factory known under `name`.

        Raises:
            UserError: another factory has the name already.
        """

        def add(item: T) -> T:
            known = self._items.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (item.__module__, item.__qualname__):
                both = f"{known.__module__} and {item.__module__}"
                raise UserError(f"{self.kind} {name!r} is registered twice, by {both}: give yours another name")
            self._items[name] = item
            return item

        return add

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._load()
        return sorted(self._items)

    def get(self, name: str) -> T:
        """The factory of that name.

        Raises:
            UserError: the name is unknown; the message has the nearest known one.
        """
        self._load()
        if name not in self._items:
            known = self.names()
            remedy = "One of your own: `--plugin FILE.py`, or `plugins: [FILE.py]` in the grid."
            every = f" Known: {', '.join(known)}."
            if len(known) > LISTED:  # a line that nobody reads to its end
                every = f" `bench {self.kind.replace(' ', '')}s` lists all {len(known)}."
            raise UserError(f"unknown {self.kind} {name!r}.{did_you_mean(name, known)}{every} {remedy}")
        return self._items[name]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # before the imports: a module may look others up while it registers itself
        package = importlib.import_module(self.package)
        if not getattr(package, "PFL_BENCH", False):
            raise UserError(
                f"the package {self.package!r} found at {getattr(package, '__file__', '?')} is not pFLeague's: "
                "another distribution of that name hides it. Install pFLeague in an environment of its own."
            )
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        group = f"bench.{self.kind.replace(' ', '')}s"
        for entry in importlib.metadata.entry_points(group=group):
            entry.load()


def theirs(factory: Callable[..., Any]) -> bool:
    """Whether a registered factory is a user's or another package's, whose mistakes are told to its author."""
    return factory.__module__.partition(".")[0] not in OURS


def made_by(what: str, wanted: type[Made], factory: Callable[..., Any], *args: Any, **options: Any) -> Made:
    """What a registered factory makes.

    Args:
        what: how messages call it, for instance "data set 'mine'".
        wanted: what it should return.
        factory: it is called with the rest.

    Raises:
        UserError: its own, or of a user's factory any mistake, with its place.
    """
    try:
        made = factory(*args, **options)
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:
        if not theirs(factory):
            raise
        raise UserError(f"{what} failed: {in_words(error, sys.modules[factory.__module__].__file__)}") from error
    if not isinstance(made, wanted):
        raise UserError(
            f"{what} returned {type(made).__name__}; it should return a {wanted.__name__} (docs/plugins.md)"
        )
    return made


METHODS: Registry[Any] = Registry("method", "methods")
DATASETS: Registry[Any] = Registry("data set", "datasets")
PARTITIONS: Registry[Any] = Registry("partition", "datasets")
SHIFTS: Registry[Any] = Registry("shift", "datasets")
MODELS: Registry[Any] = Registry("model", "bench.models")
SERVER_RULES: Registry[Any] = Registry("server rule", "methods")
SELECTIONS: Registry[Any] = Registry("selection", "methods")

FILE_MODULE = "plugin_"
"""How the module of a plug-in's file begins."""
_FILES: dict[Path, ModuleType] = {}


def load_file(file: Path | str) -> ModuleType:
    """Import a Python file that registers methods, data sets, partitions, shifts or models; once in a process.

    Modules beside the file may be imported by it.

    Raises:
        UserError: there is no such file, or it cannot be imported.
    """
    path = Path(file).resolve()
    if path in _FILES:
        return _FILES[path]
    if not path.is_file():
        raise UserError(f"there is no file {file}: give the path of a .py file")
    name = f"{FILE_MODULE}{path.stem}"
    while name in sys.modules:  # a file of the same name in another folder
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file: its name must end in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        raise UserError(f"{file} cannot be imported: {in_words(error, str(path))}") from error
    _FILES[path] = module
    return module


def loaded_files() -> tuple[Path, ...]:
    """The plug-in files that this process has loaded, which its workers need too."""
    return tuple(_FILES)


def loaded_modules() -> tuple[tuple[str, Path], ...]:
    """The same with the names of their modules."""
    return tuple((module.__name__, path) for path, module in _FILES.items())
