"""Methods and models as their files declare them, read without torch: names, options, hyperparameters, docstrings.

Importing torch takes seconds, and a misspelt name in a grid should not cost them. So the files are imported once with a
stand-in for torch (Sphinx's `autodoc_mock_imports` does the same) and then forgotten, so that whoever trains imports
them for real. What is declared can be looked at, and hyperparameters can be checked; nothing of it can be run.

Which modules of its folder a plug-in imports is read from its syntax (`refuse_hidden`).
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
        raise UserError(
            f"the package {package!r} found at {getattr(root, '__file__', '?')} is not pFLeague's: another "
            "distribution of that name hides it. Install pFLeague in an environment of its own."
        )
    for module in pkgutil.iter_modules(root.__path__):
        importlib.import_module(f"{package}.{module.name}")


@functools.cache
def declarations(package: str) -> dict[str, dict[str, Any]]:
    """All that the modules of one of our packages register: by kind (`method`, `model`, ...), then by name.

    Args:
        package: for instance `methods`; none of its modules is imported yet.

    Raises:
        UserError: Python finds another distribution's package of that name.
    """
    with _forgotten(), _stand_ins():
        plugin = importlib.import_module(_PLUGIN)
        import_all(package)
        return {registry.kind: dict(registry._items) for registry in plugin.REGISTRIES}


def read_without_torch() -> bool:
    """Return whether declarations are read in this way: once torch is imported, the real thing costs no more."""
    return "torch" not in sys.modules


def refuse_hidden(file: Path, *, loaded: bool) -> None:
    """Refuse a plug-in that imports a module from its folder for which Python takes another module of that name.

    That module may be another plug-in's: its code would run, and count in the cells' ids.

    Args:
        file: the resolved path of the plug-in.
        loaded: look only at modules that are loaded; else also at those that will be imported later.

    Raises:
        UserError: there is such a module.
    """
    for name, beside in _modules_beside(file).items():
        known = sys.modules.get(name)
        if loaded and known is None:
            continue
        spec = _spec_of(name)
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or []), None))
        if place and Path(place).resolve() != beside.resolve():
            raise UserError(
                f"{file} imports {name!r}, but Python would take {place} and not {beside}: rename one of the two, "
                "and the imports of it"
            )


def _modules_beside(file: Path) -> dict[str, Path]:
    """Find the modules in a plug-in's folder that it imports, even indirectly or within functions.

    pFLeague's own packages are left out: those that run are meant, even where a copy of the source lies there. So is a
    folder without `__init__.py` where a package elsewhere has its name, which Python prefers: it may be a clone.

    Returns:
        Their names, each with its file, `__init__.py` for a package, or the folder of a package without that.
    """
    beside: dict[str, Path] = {}
    queue = [file]
    while queue:
        for name in _imported(queue.pop()).difference(beside, _OURS):
            folder = file.parent / name
            places = [place for place in (folder / "__init__.py", folder.with_suffix(".py")) if place.is_file()]
            if not places and (not folder.is_dir() or ((spec := _spec_of(name)) and spec.origin)):
                continue
            inside = sorted(folder.rglob("*.py"))
            if places or inside:
                beside[name] = places[0] if places else folder
                queue += places[:1] + inside
    return beside


def _spec_of(name: str) -> ModuleSpec | None:
    """The specification of the module that Python takes for a name; None where there is none."""
    known = sys.modules.get(name)
    return known.__spec__ if known else importlib.util.find_spec(name)


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
def _forgotten() -> Iterator[None]:
    """Forget at the end of the block what our packages imported in it: no module of it stays in `sys.modules`."""
    plugin = sys.modules.pop(_PLUGIN)
    loaded = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - loaded:
            if name.partition(".")[0] in _FORGOTTEN:
                parent, _, module = name.rpartition(".")
                del sys.modules[name]
                if parent in loaded:
                    delattr(sys.modules[parent], module)
        sys.modules[_PLUGIN] = plugin
        setattr(sys.modules["bench"], "plugin", plugin)  # noqa: B010 (mypy knows no such attribute)


@contextmanager
def _stand_ins() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


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
