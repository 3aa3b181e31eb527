"""The audit of PFLlib's algorithms names each of them once, and its page is written from it."""

import yaml

from bench.cli.from_pfllib import ALGORITHMS
from tools.audit import PAGE, WORDS, table

ROWS = yaml.safe_load(WORDS.read_text(encoding="utf-8"))


def test_all_algorithms_are_there() -> None:
    assert {row.get("algorithm", name) for name, row in ROWS.items()} == set(ALGORITHMS)


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_a_row_that_is_not_equal_says_where_it_parts_and_cards_link_to_rows() -> None:
    for line in table().splitlines()[4:]:
        cells = line.split(" | ")
        assert set(cells[3:7]) == {"equal"} or cells[7], cells[0]
        if '"' not in cells[0]:
            continue  # a further row of a method
        method = cells[0].split('"')[1]
        card = PAGE.parent / "methods" / f"{method}.md"
        assert f"beside-pfllib.md#{method}" in card.read_text(encoding="utf-8"), method
