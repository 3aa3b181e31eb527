"""Rows that `bench evaluate` added to a finished cell, beside those of the same cell computed again."""

from collections.abc import Iterator
from pathlib import Path

from bench.plugin import METRICS
from bench.results.figures import ALL
from bench.results.results import CellView
from bench.runs.verify.consistency import read_rows
from bench.settings import RECORDED, FurtherTest
from bench.store.documents import read_json

TABLE = "evaluated"

_Key = tuple[str, ...]
_COLUMNS = ("round", "metric", "on", "mean", "client", "split", "quantity")


def evaluated_tests(cell: CellView) -> list[FurtherTest]:
    """The further tests that a cell has rows of, as far as their names, or its settings, say what they are."""
    known = {label: test for test in cell.settings.tests for label in test.labels}
    tests = []
    for label in dict.fromkeys(cell.table(TABLE)["split"]):
        kind, _, rest = label.partition(" ")
        corruption, _, severity = rest.rpartition(" ")
        if label in known:
            tests.append(known[label])
        elif label in ("global", "others"):
            tests.append(FurtherTest(name=label))
        elif kind == "corrupted" and corruption and severity in "12345":
            tests.append(FurtherTest(name="corrupted", kinds=(corruption,), severity=int(severity)))
    return list({test.labels: test for test in tests}.values())


def scores_of(cell: CellView) -> set[str]:
    """The further scores that a cell has rows of, in its own tables and in that of later evaluations."""
    return {*cell.table("scores")["quantity"], *cell.table(TABLE)["quantity"]}.difference(RECORDED)


def added_rows(cell: CellView, folder: Path) -> Iterator[tuple[str, dict[str, str], float | None, bool]]:
    """The rows of a cell's later evaluations, each with its place, the value in `folder`, and whether it is of another
    round: training that rounds otherwise may report another one.

    Rows of tests that `folder` has none of are left out (`not_evaluated`), and scores that are not known here.

    Args:
        cell: the finished cell.
        folder: the same cell computed again.
    """
    if not (cell.folder / f"{TABLE}.csv").exists():
        return
    computed, left_out = _computed(folder), set(not_evaluated(cell, folder))
    of_any_round = {key[1:]: value for key, value in computed.items()}
    for line, row in enumerate(read_rows(cell.folder, TABLE), start=2):
        if row["split"] not in left_out and row["quantity"] in METRICS.names():
            key = _key(row)
            yield f"{TABLE}.csv, line {line}", row, computed.get(key, of_any_round.get(key[1:])), key not in computed


def not_evaluated(cell: CellView, folder: Path) -> list[str]:
    """The tests of a cell's later evaluations that cannot be compared with those in `folder`."""
    names = list(dict.fromkeys(cell.table(TABLE)["split"]))
    again = read_json(folder / "settings.json")
    if again is None or again["select_by"] != cell.settings.select_by:  # models of other rounds
        return names
    known = {key[_COLUMNS.index("split")] for key in _computed(folder)}
    return [name for name in names if name not in known]


def _computed(folder: Path) -> dict[_Key, float]:
    """Values by row, as `evaluated.csv` has them: what was asked for at once stands in the tables of scores."""
    tables = {name: folder / f"{name}.csv" for name in (TABLE, "scores", "client_scores", "metrics")}
    rows = [
        {"client": str(ALL), "on": "local", "mean": "", **row}
        for name, file in tables.items()
        if file.exists()
        for row in read_rows(folder, name)
    ]
    return {_key(row): float(row["value"]) for row in rows}


def _key(row: dict[str, str]) -> _Key:
    return tuple(row[column] for column in _COLUMNS)
