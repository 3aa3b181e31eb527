"""The prose of the sources: public things have docstrings, docstrings can be read alone, and local names are nouns."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

PACKAGES = ("bench", "datasets", "sweeps", "reports")

BEGINNINGS = {
    "Also", "And", "As", "At", "Both", "But", "By", "Else", "For", "From", "Here", "How", "If", "In", "It", "Its",
    "Likewise", "May", "Of", "On", "Or", "Otherwise", "See", "Such", "That", "Then", "There", "They", "This", "Those",
    "To", "What", "When", "Where", "Which", "Who", "Whose", "Why", "With", "Without",
}  # fmt: skip
"""First words with which a docstring leans on something outside itself. `Whether` begins the name of a truth value."""

PHRASES = re.compile(r"The same(?! \w+)|The same (?:for|as|in|but|with|at|on)\b")
"""First words that do so as a phrase: `The same for lanes`. `The same permutation for all clients` stands alone."""

PRONOUNS = {"found", "one", "own", "made", "theirs"}
"""Names of variables that say nothing of what they hold."""

PUBLIC_OPTIONS = {("datasets/markov.py", "own"), ("datasets/shifting.py", "own")}
"""Parameters that users' grids and shifts name, so that they cannot have another name."""


class Prose(NamedTuple):
    """What a reader sees of one file."""

    missing: list[str]
    leaning: list[str]
    pronouns: list[str]


def room(file: Path) -> str:
    """The room of a file, such as `bench/engine` or `bench/runs/verify`; `bench/base` for files in `bench/` itself."""
    package, *folders = file.relative_to(ROOT).parts[:-1]
    if package != "bench":
        return package
    return "/".join([package, *(folders[:2] if folders[:1] == ["runs"] else folders[:1])]) if folders else "bench/base"


def documented(tree: ast.Module) -> Iterator[tuple[ast.AST, str, bool]]:
    """The module, its classes and functions, each with its name and whether it is public: no part of it is private.

    A method that overrides one of a base class, and a function within a function, need no docstring of their own.
    """

    def below(node: ast.AST, name: str, public: bool) -> Iterator[tuple[ast.AST, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                is_public = public and not child.name.startswith("_")
                overrides = isinstance(node, ast.ClassDef) and bool(node.bases) and not isinstance(child, ast.ClassDef)
                yield child, f"{name}{child.name}", is_public and not overrides
                inner = is_public and isinstance(child, ast.ClassDef)
                yield from below(child, f"{name}{child.name}.", inner)
            else:
                yield from below(child, name, public)

    yield tree, "the module", True
    yield from below(tree, "", True)


def bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, parameter and function of a file; not of attributes, which others may use."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(part.target) for node in classes for part in node.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
            yield node.lineno, node.name.lstrip("_")


def read(source: str, place: str) -> Prose:
    """Find what a reader would stumble over in a file's text."""
    tree = ast.parse(source)
    missing, leaning = [], []
    for node, name, public in documented(tree):
        text = ast.get_docstring(node)  # type: ignore[arg-type]
        line = getattr(node, "lineno", 1)
        if text is None:
            if public:
                missing.append(f"{place}:{line}: {name} has no docstring")
        elif re.split(r"[\s,:;.]", text, maxsplit=1)[0] in BEGINNINGS or PHRASES.match(text):
            leaning.append(f"{place}:{line}: {name}: {text.splitlines()[0]}")
    pronouns = [
        f"{place}:{line}: {name}"
        for line, name in bound(tree)
        if name in PRONOUNS and (place, name) not in PUBLIC_OPTIONS
    ]
    return Prose(missing, leaning, pronouns)


def rooms() -> dict[str, list[Path]]:
    """The source files of each room."""
    files: dict[str, list[Path]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            files.setdefault(room(file), []).append(file)
    return files


ROOMS = rooms()


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_sources_read_well(name: str) -> None:
    parts = [read(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()) for file in ROOMS[name]]
    faults = [fault for part in parts for faults_of_kind in part for fault in faults_of_kind]
    assert not faults, "\n" + "\n".join(faults)


SAMPLE = '''"""As the module beside it."""

from bench.base import Base


def public() -> None:
    pass


def _private() -> None:
    """Of its step or its loss."""
    for one in range(3):
        print(one)


def lanes(found: int) -> int:
    """The same for lanes."""
    def inside() -> None: ...
    return found


class Found(Base):
    """The same permutation for all clients."""

    def overrides(self) -> bool:
        return True
'''


def test_each_kind_of_fault_is_seen() -> None:
    prose = read(SAMPLE, "x.py")
    assert [fault.split(": ")[1] for fault in prose.missing] == ["public has no docstring"]
    assert [fault.split(": ")[1] for fault in prose.leaning] == ["the module", "_private", "lanes"]
    assert sorted(fault.split(": ")[1] for fault in prose.pronouns) == ["found", "one"]
