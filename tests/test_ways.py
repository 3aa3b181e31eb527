"""What docs/architecture.md says of single files is so: who is where, and which call leads to which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ANSWERS = re.findall(r"^\|[^|]+\| `(\S+\.py)` \| `(\w+)` \|$", TEXT, re.MULTILINE)


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
