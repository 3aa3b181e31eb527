"""Checks that the files of a finished cell agree with each other (docs/verify.md).

Nothing is computed again, so this is done for every cell. A mean over clients follows from the clients' counts, their
sizes from the partition, the rounds from the settings: who edits one number has to edit all that follow from it.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.results.figures import ALL
from bench.results.results import CellView
from bench.store.data_record import record_of
from bench.store.documents import read_json
from bench.store.store import COLUMNS

ROUNDING = 1e-12
"""Largest relative difference of two means of the same float64 numbers: their sums may be rounded differently."""

_ALWAYS = ("metrics", "clients", "ledger", "work")
"""Tables that every finished cell has."""

Row = dict[str, str]
_Counts = dict[tuple[str, str, str], dict[int, tuple[int, int]]]
"""Correct and all samples by client, for each round, metric and split."""


def disagreement(cell: CellView) -> str | None:
    """Return the first thing in which the files of a finished cell disagree, or None.

    Any error of reading means that a file was edited.
    """
    return next(_disagreements(cell), None)


def _disagreements(cell: CellView) -> Iterator[str]:
    partition = read_json(cell.folder / "partition.json")
    tables = {name: read_rows(cell.folder, name) for name in COLUMNS if (cell.folder / f"{name}.csv").exists()}
    yield from _state(cell, tables)
    yield from _rounds(cell, tables)
    yield from _rows_of_clients(tables["clients"], partition)
    counts = counts_of(tables["clients"])
    yield from _means(tables["metrics"], counts, partition)
    if "scores" in tables or "client_scores" in tables:
        yield from _further_means(tables["scores"], tables["client_scores"], counts, partition)
    if (cell.folder / "evaluated.csv").exists():
        yield from _evaluated_means(read_rows(cell.folder, "evaluated"), partition, cell.settings.rounds)


def read_rows(folder: Path, name: str) -> list[Row]:
    """The rows of a table as they are written, which is faster than `read_table` for many small ones."""
    with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def _state(cell: CellView, tables: dict[str, list[Row]]) -> Iterator[str]:
    """Check that each table has a checksum, which `read_status` compares, as it does the number of rounds."""
    for name in dict.fromkeys((*_ALWAYS, *tables)):
        if name not in cell.status.checksums:
            yield f"status.json has no checksum of {name}.csv"


def _rounds(cell: CellView, tables: dict[str, list[Row]]) -> Iterator[str]:
    every, last = cell.settings.eval_every, cell.settings.rounds
    done = range(1, cell.status.rounds + 1)
    scored = [version for version in done if version % every == 0 or version == last]
    for name, expected in (("ledger", list(done)), ("work", list(done)), ("metrics", scored), ("clients", scored)):
        numbers = [int(row["round"]) for row in tables[name]]
        if name in ("metrics", "clients"):
            numbers = list(dict.fromkeys(numbers))
        if numbers != expected:
            yield f"{name}.csv has rounds {_short(numbers)}, by the settings {_short(expected)}"


def _short(rounds: list[int]) -> str:
    texts = [str(number) for number in rounds]
    return ", ".join(texts if len(texts) < 8 else [*texts[:3], "...", *texts[-2:]]) or "none"


def _rows_of_clients(rows: list[Row], partition: dict[str, Any]) -> Iterator[str]:
    seen = set()
    for line, row in enumerate(rows, start=2):
        client, split, correct, samples = int(row["client"]), row["split"], int(row["correct"]), int(row["samples"])
        size = record_of(partition, int(row["round"]))[f"n_{split}"][client]
        if samples != size:
            yield f"clients.csv, line {line}: client {client} has {samples} {split} samples, by partition.json {size}"
        if not 0 <= correct <= samples:
            yield f"clients.csv, line {line}: {correct} of {samples} samples are correct"
        key = row["round"], row["metric"], split, client
        if key in seen:
            yield f"clients.csv, line {line}: client {client} a second time"
        seen.add(key)


def counts_of(rows: list[Row]) -> _Counts:
    """The counts in rows of `clients.csv`."""
    counts: _Counts = defaultdict(dict)
    for row in rows:
        key = row["round"], row["metric"], row["split"]
        counts[key][int(row["client"])] = int(row["correct"]), int(row["samples"])
    return counts


def _means(rows: list[Row], counts: _Counts, partition: dict[str, Any]) -> Iterator[str]:
    """Check that accuracies in `metrics.csv` are means over the rows of `clients.csv`, but for a common test set."""
    expected = expected_means(counts, partition)
    quantities: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for line, row in enumerate(rows, start=2):
        key, value = _key(row), float(row["value"])
        quantities[key].add(row["quantity"])
        if row["quantity"] == "accuracy":
            common = record_of(partition, int(row["round"]))["n_global_test"]
            mean = expected.get(key, round(value * common) / max(1, common))
            if not math.isclose(value, mean, rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield f"metrics.csv, line {line}: accuracy {value}, by the counts of correct samples {mean}"
    pooled = {
        key
        for key in quantities
        if key[2:] == ("global", "", "test") and record_of(partition, int(key[0]))["n_global_test"]
    }
    for key in sorted(quantities.keys() | expected.keys()):
        if quantities.get(key) != {"accuracy", "loss"} or key not in expected.keys() | pooled:
            yield f"metrics.csv and clients.csv do not have the same rows: {','.join(key)}"


def expected_means(counts: _Counts, partition: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """The accuracies that follow from the clients' counts."""
    expected: dict[tuple[str, ...], float] = {}
    for (round_, metric, split), by_client in counts.items():
        shares = {client: correct / samples for client, (correct, samples) in by_client.items()}
        record = record_of(partition, int(round_))
        means = means_of(shares, record["n_train"], _benign(by_client, metric, partition.get("malicious")))
        expected.update({(round_, metric, "local", mean, split): value for mean, value in means.items()})
        if metric == "gm" and (split == "validation" or not record["n_global_test"]):
            correct, samples = (sum(of) for of in zip(*by_client.values(), strict=True))
            expected[round_, metric, "global", "", split] = correct / samples
    return expected


def _benign(clients: Iterable[int], metric: str, malicious: list[int] | None) -> list[int]:
    """The clients of the mean `benign`: none in a cell without an attack, and none of those held out of training."""
    return [] if malicious is None or metric.startswith("new") else [i for i in clients if i not in malicious]


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in ("round", "metric", "on", "mean", "split"))


def _further_means(rows: list[Row], clients: list[Row], counts: _Counts, partition: dict[str, Any]) -> Iterator[str]:
    """Check that further scores are of the clients that are scored, and that their means follow from the clients'."""
    values: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for row in clients:
        values[_place({**row, "on": "local"})][int(row["client"])] = float(row["value"])
    for (round_, metric, _, split, quantity), by_client in values.items():
        if by_client.keys() != counts.get((round_, metric, split), {}).keys():
            yield f"client_scores.csv: {quantity} of {metric}, {split}, round {round_}: not the clients of clients.csv"
            return
    means = {
        (place, mean): value
        for place, by_client in values.items()
        for mean, value in _means_by_place(by_client, place, partition, int(place[0])).items()
    }
    for line, row in enumerate(rows, start=2):
        if row["on"] == "local":
            yield from _unlike("scores.csv", line, row, means.get((_place(row), row["mean"]), math.inf))
    if means.keys() - {(_place(row), row["mean"]) for row in rows}:
        yield "scores.csv lacks means of what client_scores.csv has"


def _evaluated_means(rows: list[Row], partition: dict[str, Any], last: int) -> Iterator[str]:
    """Check that means of later evaluations, which are of the last round's data, follow from the clients' values."""
    values: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row["client"] != str(ALL):
            values[_place(row)][int(row["client"])] = float(row["value"])
    for line, row in enumerate(rows, start=2):
        if row["client"] == str(ALL) and row["mean"]:
            means = _means_by_place(values[_place(row)], _place(row), partition, last)
            yield from _unlike("evaluated.csv", line, row, means.get(row["mean"], math.inf))


def _unlike(name: str, line: int, row: Row, mean: float) -> Iterator[str]:
    if not np.isclose(value := float(row["value"]), mean, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
        yield f"{name}, line {line}: {value}, by the clients' values {mean}"


def _means_by_place(
    by_client: dict[int, float], place: tuple[str, ...], partition: dict[str, Any], data_of: int
) -> dict[str, float]:
    """The means of the clients' values in one place, by name; `data_of` is the round whose data they are of."""
    benign = _benign(by_client, place[1], partition.get("malicious"))
    return means_of(by_client, record_of(partition, data_of)["n_train"], benign)


def means_of(by_client: dict[int, float], train: list[int], benign: list[int]) -> dict[str, float]:
    """The means over the clients that have a value, by name."""
    present = {client: value for client, value in by_client.items() if not math.isnan(value)}
    means = {"train_size": {i: train[i] for i in present}, "equal": dict.fromkeys(present, 1)}
    means |= {"benign": {i: train[i] for i in benign if i in present}} if benign else {}
    return {
        mean: math.fsum(weight * present[client] for client, weight in weights.items()) / sum(weights.values())
        if any(weights.values())
        else math.nan
        for mean, weights in means.items()
    }


def _place(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in ("round", "metric", "on", "split", "quantity"))
