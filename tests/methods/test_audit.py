"""The page on what methods were held against leaves none out, and its facts are the code's."""

import re

from bench.plugin import METHODS
from tests.conftest import ROOT
from tests.engine.problems import METHOD_NAMES
from tests.methods.test_with_modules import REFERENCES

PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
ROWS = {
    row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| \[(\S+)\]\S+ \| ([^|]+) \| [^|]+ \| (yes|no) \|", PAGE, re.M)
}


def test_every_method_has_a_row_with_its_card() -> None:
    assert sorted(ROWS) == METHOD_NAMES
    for name, (card, _, _) in ROWS.items():
        text = (ROOT / "docs" / "methods" / card).read_text(encoding="utf-8")
        assert f"`{name}`" in text.splitlines()[0], name
        assert "**Tested" in text, name


def test_the_page_says_which_methods_are_symmetric() -> None:
    assert {name: row[2] == "yes" for name, row in ROWS.items()} == {
        name: METHODS.get(name).symmetric for name in METHOD_NAMES
    }


def test_the_page_names_the_references_in_plain_torch() -> None:
    for name in REFERENCES:
        assert "plain torch" in ROWS[name][1], name


def test_no_method_s_file_is_longer_than_an_algorithm_box_can_be_read() -> None:
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "methods").glob("*.py")}
    assert {name: count for name, count in lines.items() if count > 150} == {}
