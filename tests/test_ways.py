"""What docs/architecture.md says of single files is so: who is where, and which call leads to which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ANSWERS = re.findall(r"^\|[^|`]+\?[^|]*\| `(\S+\.py)` \| `(\w+)` \|$", TEXT, re.MULTILINE)


CALLS = re.findall(r"^\| `([\w.]+)` \| `(\S+\.py)` \| (?:`([\w.]+)`)? ?\|$", TEXT, re.MULTILINE)
FILES = [ROOT / file for _, file, _ in CALLS] + [ROOT / "bench" / "cli" / "results.py"]


def definitions(file: Path) -> Iterator[str]:
    """The names of the functions and classes of a file, methods as `Class.method`."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef))


def test_there_are_ten_questions() -> None:
    assert len(ANSWERS) == 10


@pytest.mark.parametrize(("file", "name"), ANSWERS)
def test_a_question_is_answered_by_its_file(file: str, name: str) -> None:
    assert name in definitions(ROOT / file)


def bodies(name: str) -> Iterator[ast.AST]:
    """The functions and methods of a name, in the files of the way."""
    *owner, function = name.split(".")
    for file in dict.fromkeys(FILES):
        nodes: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
        if owner:
            nodes = [
                child
                for node in nodes
                if isinstance(node, ast.ClassDef) and node.name == owner[0]
                for child in node.body
            ]
        yield from (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function)


def test_fifteen_calls_lead_from_a_grid_to_a_row() -> None:
    assert len(CALLS) == 15
    for name, file, _ in CALLS:
        assert name in definitions(ROOT / file)


@pytest.mark.parametrize(("name", "caller"), [(name, caller) for name, _, caller in CALLS[1:]])
def test_a_call_of_the_way_is_made_where_it_says(name: str, caller: str) -> None:
    last = name.rpartition(".")[2]
    called = [node.func for body in bodies(caller) for node in ast.walk(body) if isinstance(node, ast.Call)]
    assert last in {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in called}
