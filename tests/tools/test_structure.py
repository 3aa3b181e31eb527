"""The numbers and pictures of the structure in docs/lab-notes.md are of the code as it is."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import structure

AGAIN = f"the structure has changed: `{structure.COMMAND}` draws and counts it again"


@pytest.fixture(scope="module")
def found() -> dict[str, structure.Structure]:
    return structure.structures()


def test_the_pictures_are_of_the_code(found: dict[str, structure.Structure]) -> None:
    for file, text in structure.pictures(found).items():
        assert file.read_text(encoding="utf-8") == text, AGAIN


def test_the_numbers_in_the_docs_are_those_of_the_code(found: dict[str, structure.Structure]) -> None:
    assert structure.table(found) in structure.PAGE.read_text(encoding="utf-8"), AGAIN


@pytest.mark.long
def test_what_is_kept_of_earlier_commits_is_what_the_repository_has(found: dict[str, structure.Structure]) -> None:
    """Where the history was fetched, too."""
    command = ["git", "cat-file", "-e", f"{structure.COMMITS['before']}^{{commit}}"]
    if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("the history is not here")
    assert {name: found[name] for name in structure.COMMITS} == structure.history()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two files that import from each other below a folder, and a package on top; `typed` is for type checkers only."""
    files = {
        "bench/__init__.py": "",
        "bench/one.py": "def late():\n    from bench.two import b\n",
        "bench/two.py": "import bench.one\nimport json\n",
        "bench/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bench import two\n",
        "bench/room/__init__.py": "from .inner import x\n",
        "bench/room/inner.py": "from .. import one\nfrom bench.room import inner\n",
        "methods/mine.py": "from bench.room import x\nfrom bench import anything\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_rooms_arrows_floors_and_circles_are_counted(small: Path) -> None:
    found = structure.read(small)
    assert found == {
        "bench/__init__.py": [],
        "bench/one.py": ["bench/two.py"],
        "bench/room/": ["bench/one.py"],
        "bench/two.py": ["bench/one.py"],
        "bench/typed.py": [],
        "methods/": ["bench/__init__.py", "bench/room/"],
    }
    assert structure.counts(found) == (6, 5, 3, 1)
    assert [sorted(level) for level in structure.floors(found)] == [
        ["bench/__init__.py", "bench/one.py", "bench/two.py", "bench/typed.py"],
        ["bench/room/"],
        ["methods/"],
    ]
    assert structure.draw(found, "").count('<path class="circle"') == 2
