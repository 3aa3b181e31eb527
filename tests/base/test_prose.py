"""The prose of the sources: public things have docstrings, docstrings can be read alone, and local names are nouns."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

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


def faults(file: Path) -> Iterator[str]:
    """What a reader of a file would stumble over."""
    place = file.relative_to(ROOT).as_posix()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node, name, public in documented(tree):
        text = ast.get_docstring(node)  # type: ignore[arg-type]
        line = getattr(node, "lineno", 1)
        if text is None and public:
            yield f"{place}:{line}: {name} has no docstring"
        if text and (re.split(r"[\s,:;.]", text, maxsplit=1)[0] in BEGINNINGS or PHRASES.match(text)):
            yield f"{place}:{line}: {name}: {text.splitlines()[0]}"
    for line, name in bound(tree):
        if name in PRONOUNS and (place, name) not in PUBLIC_OPTIONS:
            yield f"{place}:{line}: {name}"


@pytest.mark.long
@pytest.mark.parametrize("package", ["bench", "datasets", "sweeps", "reports"])
def test_sources_read_well(package: str) -> None:
    found = [fault for file in sorted((ROOT / package).rglob("*.py")) for fault in faults(file)]
    assert not found, "\n" + "\n".join(found)
