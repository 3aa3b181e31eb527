"""Checks that the files of a finished cell agree with each other (docs/verify.md).

Nothing is computed again, so this is done for every cell. A mean over clients follows from the clients' counts, their
sizes from the partition, the rounds from the settings: who edits one number has to edit all that follow from it.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.results.results import CellView
from bench.store.data_record import record_of
from bench.store.documents import read_json
from bench.store.store import COLUMNS

ROUNDING = 1e-12
"""Largest relative difference of two means of the same float64 numbers: their sums may be rounded differently."""

_ALWAYS = ("metrics", "clients", "ledger", "work")
"""Tables that every finished cell has."""
_KEY = ("round", "metric", "on", "mean", "split", "quantity")

Row = dict[str, str]
_Values = Mapping[tuple[str, str, str, str], dict[int, float]]
"""The clients' values, for each round, metric, split and quantity."""


def disagreement(cell: CellView) -> str | None:
    """Return the first thing in which the files of a finished cell disagree, or None.

    Any error of reading means that a file was edited.
    """
    return next(_disagreements(cell), None)


def _disagreements(cell: CellView) -> Iterator[str]:
    partition = read_json(cell.folder / "partition.json")
    tables = {name: read_rows(cell.folder, name) for name in COLUMNS if (cell.folder / f"{name}.csv").exists()}
    for name in dict.fromkeys((*_ALWAYS, *tables)):  # `read_status` compares the checksums that there are
        if name not in cell.status.checksums:
            yield f"status.json has no checksum of {name}.csv"
    yield from _rounds(cell, tables)
    yield from _rows_of_clients(tables["clients"], partition)
    values = values_of(tables["clients"], tables.get("client_scores", []))
    for (round_, metric, split, quantity), by_client in values.items():
        if by_client.keys() != values.get((round_, metric, split, "accuracy"), {}).keys():
            yield f"client_scores.csv: {quantity} of {metric}, {split}, round {round_}: not the clients of clients.csv"
    yield from _means(tables, expected_means(values, partition), partition)


def read_rows(folder: Path, name: str) -> list[Row]:
    """The rows of a table as they are written, which is faster than `read_table` for many small ones."""
    with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def _rounds(cell: CellView, tables: dict[str, list[Row]]) -> Iterator[str]:
    every, last = cell.settings.eval_every, cell.settings.rounds
    done = list(range(1, cell.status.rounds + 1))
    scored = [version for version in done if version % every == 0 or version == last]
    for name, expected in (("ledger", done), ("work", done), ("metrics", scored), ("clients", scored)):
        numbers = [int(row["round"]) for row in tables[name]]
        if (list(dict.fromkeys(numbers)) if expected is scored else numbers) != expected:
            yield f"{name}.csv does not have the rounds that the settings ask for"


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


def values_of(clients: list[Row], client_scores: list[Row]) -> _Values:
    """The accuracies and further scores of clients, from the rows of the two tables."""
    values: dict[tuple[str, str, str, str], dict[int, float]] = defaultdict(dict)
    for row in clients:
        share = int(row["correct"]) / int(row["samples"])
        values[row["round"], row["metric"], row["split"], "accuracy"][int(row["client"])] = share
    for row in client_scores:
        place = row["round"], row["metric"], row["split"], row["quantity"]
        values[place][int(row["client"])] = float(row["value"])
    return values


def expected_means(values: _Values, partition: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """The means that follow from the clients' values, by the columns before the value in `metrics.csv`."""
    expected: dict[tuple[str, ...], float] = {}
    malicious: list[int] | None = partition.get("malicious")
    for (round_, metric, split, quantity), by_client in values.items():
        record = record_of(partition, int(round_))
        # no mean `benign` in a cell without an attack, and none of clients held out of training
        unattacked = malicious is None or metric.startswith("new")
        benign = [] if unattacked else [client for client in by_client if client not in (malicious or ())]
        for mean, value in means_of(by_client, record["n_train"], benign).items():
            expected[round_, metric, "local", mean, split, quantity] = value
        pooled = split == "validation" or not record["n_global_test"]
        if metric == "gm" and quantity == "accuracy" and pooled:
            sizes = {client: record[f"n_{split}"][client] for client in by_client}
            right = math.fsum(by_client[client] * size for client, size in sizes.items())
            expected[round_, metric, "global", "", split, quantity] = right / sum(sizes.values())
    return expected


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


def _means(
    tables: dict[str, list[Row]], expected: dict[tuple[str, ...], float], partition: dict[str, Any]
) -> Iterator[str]:
    """Check that all means over clients are there and follow from the clients' values.

    The accuracy on a common test set is a number of correct samples; its further scores follow from nothing.
    """
    seen = set()
    rows = ((name, *of) for name in ("metrics", "scores") for of in enumerate(tables.get(name, []), start=2))
    for table, line, row in rows:
        key = tuple(row[column] for column in _KEY)
        seen.add(key)
        if row["quantity"] == "loss" or (table == "scores" and row["on"] == "global"):
            continue
        value = float(row["value"])
        common = record_of(partition, int(row["round"]))["n_global_test"]
        on_common = (row["on"], row["mean"], row["split"]) == ("global", "", "test") and common
        mean = expected.get(key, round(value * common) / common if on_common else math.inf)
        if not np.isclose(value, mean, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
            yield f"{table}.csv, line {line}: {row['quantity']} {value}, by the clients' values {mean}"
    if expected.keys() - seen:
        yield "metrics.csv or scores.csv lacks means of what the clients' tables have"
    of_metrics = [{key[:-1] for key in seen if key[-1] == quantity} for quantity in ("accuracy", "loss")]
    if of_metrics[0] != of_metrics[1]:
        yield "metrics.csv does not have the same rows of accuracy and of loss"
