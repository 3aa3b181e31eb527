"""What the league's page and an export say of single entries."""

import csv

from bench.runs.results import CellView


def evaluations_on_tests(cell: CellView) -> int:
    """In how many rounds a cell's models were evaluated on test samples."""
    file = cell.folder / "metrics.csv"
    if not file.exists():
        return 0
    with open(file, encoding="utf-8", newline="") as lines:
        return len({line["round"] for line in csv.DictReader(lines) if line["split"] == "test"})
