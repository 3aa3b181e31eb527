"""The pages on methods, with all of them in one table and what they were held against, leave none out and are true."""

import os
import re
import subprocess
import sys

import pytest

from bench.plugin import METHODS
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES

TABLE = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
ROWS = {
    row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| \[(\S+)\]\S+ \| ([^|]+) \| [^|]+ \| (yes|no) \|", PAGE, re.M)
}


def test_every_method_has_a_row_with_its_card_and_whether_it_is_symmetric() -> None:
    assert sorted(ROWS) == METHOD_NAMES
    for name, (card, _, symmetric) in ROWS.items():
        text = (ROOT / "docs" / "methods" / card).read_text(encoding="utf-8")
        assert f"`{name}`" in text.splitlines()[0], name
        assert "**Tested" in text, name
        assert METHODS.get(name).symmetric == (symmetric == "yes"), name


def test_no_method_s_file_is_longer_than_an_algorithm_box_can_be_read() -> None:
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "methods").glob("*.py")}
    assert {name: count for name, count in lines.items() if count > 150} == {}


def test_no_method_is_missing_in_the_table_and_the_readme_says_how_many_there_are() -> None:
    assert [line.split("`")[1] for line in TABLE.splitlines() if line.startswith("| [`")] == METHOD_NAMES
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[all {len(METHOD_NAMES)} in one table](docs/methods/README.md)" in readme


@pytest.mark.slow
def test_the_table_is_what_the_script_prints() -> None:
    command = [sys.executable, str(ROOT / "docs" / "examples" / "methods_table.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == TABLE
