"""The tables of tuning in an unpacked entry: the budget of each task and draw, and its trials."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.results.pack import TRIALS, TUNING

Trial = list[tuple[str, str]]
"""A trial's columns and what stands in them; first its settings, of which two may have one name."""


def was_tuned(entry: Path) -> bool:
    """Whether an unpacked entry has a budget of tuning: one of the default division has none."""
    return (entry / TUNING.name).exists()


def budget_text(entries: Iterable[Path]) -> str:
    """Say after a method's name how the methods of a division's unpacked entries came by their settings."""
    tuned = any(map(was_tuned, entries))
    return "with the same budget of tuning" if tuned else "with its defaults and one learning rate, untuned"


def budgets(entry: Path) -> list[dict[str, str]]:
    """The rows of the table of budgets, by column: one for each task and draw."""
    rows: list[dict[str, str]] = []
    for _, column, text in _lines(entry / TUNING.name):
        if column == "task":
            rows.append({})
        rows[-1][column] = text
    return rows


def trials(entry: Path, number: int) -> dict[str, Trial]:
    """The trials of one of the `budgets`, by their own number."""
    by_number: dict[str, Trial] = {}
    for row, column, text in _lines(entry / TRIALS.replace("*", str(number))):
        by_number.setdefault(row, []).append((column, text))
    return by_number


def _lines(file: Path) -> Iterator[tuple[str, str, str]]:
    """Row, column and content of each entry of a table's file."""
    with open(file, encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            yield line["row"], line["column"], line["value"] or line["note"]
