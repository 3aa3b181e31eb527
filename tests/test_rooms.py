"""The rooms of the source: imports go one way between them, and the drawing in the docs is of the code as it is."""

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rooms import FLOORS, PACKAGES, room

WITHIN = {
    "bench/engine": ["lanes", "backends", ""],
    "bench/runs": ["forecast", "", "verify"],
    "reports": ["statistics", "reading", "tables", "pictures", "published", "page", "decision", "league"],
}
"""The same for rooms within a room; an empty name stands for the files that lie in the room itself."""

FRONT_DOOR = ROOT / "bench" / "__init__.py"
"""Names there are found when used, so for type checkers it imports from everywhere."""


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports(file: Path) -> list[str]:
    """The modules that a file imports, wherever in it, for type checkers, too."""
    found = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


@functools.cache
def arrows() -> set[tuple[str, str]]:
    """Which room imports from which."""
    found = set()
    for package in ("bench", *PACKAGES):
        for file in set((ROOT / package).rglob("*.py")) - {FRONT_DOOR}:
            own = room(".".join(file.relative_to(ROOT).with_suffix("").parts))
            for module in imports(file):
                if module.partition(".")[0] in ("bench", *PACKAGES) and room(module) != own:
                    found.add((own, room(module)))
    return found


def test_rooms_import_from_lower_floors_only() -> None:
    for above, below in arrows():
        if above in FLOORS and below in FLOORS:
            assert FLOORS.index(below) < FLOORS.index(above), f"bench/{above} imports from bench/{below}"


@pytest.mark.parametrize("place", WITHIN)
def test_rooms_within_a_room_import_from_lower_floors_only(place: str) -> None:
    floors = WITHIN[place]
    folders = {file.parent.relative_to(ROOT / place).parts[:1] for file in (ROOT / place).rglob("*.py")}
    assert {"".join(parts) for parts in folders} - {""} == set(floors) - {""}
    for file in (ROOT / place).rglob("*.py"):
        above = "".join(file.parent.relative_to(ROOT / place).parts[:1])
        for module in imports(file):
            target = file_of(module)
            if target is None or not target.is_relative_to(ROOT / place) or target == ROOT / place / "__init__.py":
                continue
            below = "".join(target.parent.relative_to(ROOT / place).parts[:1])
            assert floors.index(below) <= floors.index(above), f"{file.relative_to(ROOT)} imports from {below}"


def test_tests_import_nothing_from_other_tests() -> None:
    """What several need is in a file that holds no tests."""
    for file in (ROOT / "tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        named = re.findall(r"^ *(?:from|import) tests\.(?:\w+\.)?(test_\w+)", text, re.MULTILINE)
        assert set(named) <= {file.stem}, file.relative_to(ROOT)


def test_the_folders_of_tests_are_the_rooms() -> None:
    """And one for pinned numbers, and one for the authors' tools; a file of `bench/` itself has its tests in `base`."""
    tests = ROOT / "tests"
    folders = {file.parent.name for file in tests.glob("*/test_*.py")}
    assert folders == {*FLOORS, *PACKAGES, "golden", "tools"}
    of_base = {f"test_{file.stem}{plural}.py" for file in (ROOT / "bench").glob("*.py") for plural in ("", "s")}
    elsewhere = [file for file in tests.glob("*/test_*.py") if file.name in of_base and file.parent.name != "base"]
    assert elsewhere == [], "tests of files of bench/ itself belong to tests/base/"


def test_methods_see_the_interface_only() -> None:
    assert {below for above, below in arrows() if above == "methods"} == {"base"}


@functools.cache
def file_of(module: str) -> Path | None:
    """The file that has a module, or a name in a module; None for what is not ours."""
    while module:
        for path in (ROOT / module.replace(".", "/") / "__init__.py", ROOT / f"{module.replace('.', '/')}.py"):
            if path.exists():
                return path
        module = module.rpartition(".")[0]
    return None


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count: a circle that only they close is a circle of what the files are about."""
    files = set((ROOT / "bench").rglob("*.py"))
    graph = {
        file: {found for module in imports(file) if (found := file_of(module)) in files}
        for file in files
        if file != FRONT_DOOR
    }
    TopologicalSorter(graph).prepare()  # raises a CycleError that lists the circle


def test_the_drawing_in_the_docs_is_of_the_code() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)
    assert drawing is not None
    drawn = set(re.findall(r"^ *(\w+) --> (\w+)$", drawing[1], re.MULTILINE))
    assert drawn == arrows(), "draw the arrows of docs/architecture.md again"


def types_in(file: Path, *, aliases: bool) -> Iterator[str]:
    """The classes that a file defines and, if wanted, its other names in CamelCase: type aliases and type variables."""
    for node in parsed(file).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif aliases and isinstance(node, ast.Assign | ast.AnnAssign):
            names = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (n.id for n in names if isinstance(n, ast.Name) and n.id[0].isupper() and not n.id.isupper())


def test_no_two_public_types_have_one_name() -> None:
    """A name in a message or a signature says which class is meant; `Hyper` is every method's own. A method's aliases
    do not count: they are part of its cells' ids."""
    found: dict[str, list[str]] = {}
    for package in ("bench", *PACKAGES):
        for file in sorted((ROOT / package).rglob("*.py")):
            for name in types_in(file, aliases=package != "methods"):
                if not name.startswith("_") and name != "Hyper":
                    found.setdefault(name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_bench_asks_data_sets_for_what_they_offer_and_imports_none_by_name() -> None:
    """An import that is spelled as text would hide a circle from the tests above."""
    files = [file.relative_to(ROOT) for file in (ROOT / "bench").rglob("*.py") if re.search(
        r"""import_module\(\s*f?["'](datasets|methods)\b""", file.read_text(encoding="utf-8")
    )]  # fmt: skip
    assert files == []
