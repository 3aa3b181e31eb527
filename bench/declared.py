"""Methods and models as their files declare them, read without torch: names, options, hyperparameters, docstrings.

Importing torch takes seconds, and a misspelt name in a grid should not cost them. So the files are imported once with a
stand-in for torch (Sphinx's `autodoc_mock_imports` does the same) and then forgotten, so that whoever trains imports
them for real. What is declared can be looked at, and hyperparameters can be checked; nothing of it can be run.
"""

import ast
import functools
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.errors import UserError

_ABSENT = ("torch", "torchvision", "triton")
_OURS = ("bench", "methods", "datasets")
_FORGOTTEN = (*_ABSENT, *_OURS)
_PLUGIN = "bench.plugin"  # imported anew meanwhile, so that the registries of the process stay as they are


def import_all(package: str) -> None:
    """Import all modules of one of our packages, which register what they have.

    Raises:
        UserError: Python finds another distribution's package of that name.
    """
    root = importlib.import_module(package)
    if not getattr(root, "PFL_BENCH", False):
        where = getattr(root, "__file__", "?")
        raise UserError(f"{where} is not pFLeague's package {package!r}: install pFLeague in an environment of its own")
    for module in pkgutil.iter_modules(root.__path__):
        importlib.import_module(f"{package}.{module.name}")


@functools.cache
def declarations(package: str) -> dict[str, dict[str, Any]]:
    """All that the modules of one of our packages register: by kind (`method`, `model`, ...), then by name.

    Raises:
        UserError: Python finds another distribution's package of that name.
    """
    with _without_torch():
        plugin = importlib.import_module(_PLUGIN)
        import_all(package)
        return {registry.kind: dict(registry._items) for registry in plugin.REGISTRIES}


def read_without_torch() -> bool:
    """Return whether declarations are read in this way: once torch is imported, the real thing costs no more."""
    return "torch" not in sys.modules


def refuse_hidden(file: Path) -> None:
    """Refuse a plug-in, by its resolved path, that imports a module of its folder for which Python takes another one.

    That module may be another plug-in's: its code would run, and count in the cells' ids. Modules are looked at that
    the plug-in imports even indirectly or within functions, but for pFLeague's own packages: those that run are meant,
    even where a copy of the source lies there. So is a package elsewhere, where a folder without `__init__.py` has its
    name: it may be a clone.

    Raises:
        UserError: there is such a module.
    """
    queue, known = [file], set(_OURS)
    while queue:
        for name in _imported(queue.pop()) - known:
            known.add(name)
            folder = file.parent / name
            beside = [place for place in (folder / "__init__.py", folder.with_suffix(".py")) if place.is_file()]
            inside = sorted(folder.rglob("*.py"))
            if not (beside or inside):
                continue
            spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
            if spec is None or (spec.origin and not beside):
                continue
            queue += beside[:1] + inside
            place = Path(spec.origin or next(iter(spec.submodule_search_locations or [])))
            hidden = [*beside, folder][0]
            if place.resolve() != hidden.resolve():
                raise UserError(
                    f"{file} imports {name!r}, but Python would take {place} and not {hidden}: rename one of the two, "
                    "and the imports of it"
                )


def _imported(file: Path) -> set[str]:
    """The first parts of the names that a file imports; none where its syntax is wrong, which its import will say."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


@contextmanager
def _without_torch() -> Iterator[None]:
    """Put stand-ins for torch in its place, and forget at the end what our packages imported in the block."""
    finder = _Finder()
    plugin = sys.modules.pop(_PLUGIN)
    loaded = set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in sys.modules.keys() - loaded:
            if name.partition(".")[0] in _FORGOTTEN:
                parent, _, module = name.rpartition(".")
                del sys.modules[name]
                if parent in loaded:
                    delattr(sys.modules[parent], module)
        sys.modules[_PLUGIN] = plugin
        setattr(sys.modules["bench"], "plugin", plugin)  # noqa: B010 (mypy knows no such attribute)


class _StandIn(ModuleType):
    """A module, class or function of torch: it has every attribute, and can be called, subscripted and derived from."""

    def __getattr__(self, name: str) -> "_StandIn":
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> "_StandIn":
        return self

    def __getitem__(self, key: Any) -> "_StandIn":
        return self

    def __or__(self, other: Any) -> "_StandIn":
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in _ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...
