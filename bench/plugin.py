"""Registration of methods, data sets, partitions and models, ours and other people's.

Ours are found in the packages beside this one, other people's through the entry-point groups `bench.methods`,
`bench.datasets`, `bench.partitions`, `bench.models`, `bench.serverrules` and `bench.selections`; either kind registers
itself by decorator:

    @METHODS.register("fedavg")
    class FedAvg(Method): ...
"""

import difflib
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bench.errors import UserError

T = TypeVar("T", bound=Callable[..., Any])


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
            ValueError: another factory has the name already.
        """

        def add(item: T) -> T:
            known = self._items.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (item.__module__, item.__qualname__):
                raise ValueError(f"{self.kind} {name!r} is registered twice: {known.__module__} and {item.__module__}")
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
            raise UserError(f"unknown {self.kind} {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}")
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


METHODS: Registry[Any] = Registry("method", "methods")
DATASETS: Registry[Any] = Registry("data set", "datasets")
PARTITIONS: Registry[Any] = Registry("partition", "datasets")
MODELS: Registry[Any] = Registry("model", "bench.models")
SERVER_RULES: Registry[Any] = Registry("server rule", "methods")
SELECTIONS: Registry[Any] = Registry("selection", "methods")
