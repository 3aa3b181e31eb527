"""Forges a finished cell as one who has read the code would: all that follows from an edit is edited, too."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.rng import generator
from bench.runs.verify.files import counts_of, expected_means, read_rows
from bench.store import store

Row = dict[str, str]

ANOTHER = "aarch64 DEFAULT Neoverse-N1 L2=1048576"
"""A processor that no test runs on, as its path would name it."""


def write_rows(folder: Path, name: str, rows: list[Row]) -> None:
    """Write a table and its checksum; `evaluated.csv`, to which rows are added later, has none."""
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, store.COLUMNS.get(name, store.EVALUATED), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if name in store.COLUMNS:
        change_status(folder, lambda status: status["checksums"].update({name: store.checksum(folder / f"{name}.csv")}))


def change_status(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Edit `status.json`."""
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    change(status)
    store.write_json(folder / "status.json", status)


def change_entries(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit the entry of each cell in `run.json`."""
    info = store.read_json(run / "run.json")
    for entry in info["cells"]:
        change(entry)
    store.write_json(run / "run.json", info)


def change_rows(folder: Path, name: str, change: Callable[[Row], object]) -> None:
    """Change the rows of a table, and its checksum; a row that is left without a round goes."""
    rows = read_rows(folder, name)
    for row in rows:
        change(row)
    write_rows(folder, name, [row for row in rows if row["round"]])


def record_checksums(folder: Path) -> None:
    """Make the checksums of a cell's records those of the files that it has."""
    change_status(folder, lambda status: status["checksums"].update(store.record_checksums(folder)))


def claim_another_processor(folder: Path) -> None:
    """Record that another processor computed a cell."""
    change_status(folder, lambda status: status["path"].update(cpu=ANOTHER))


def drift_losses(folder: Path, factor: float) -> None:
    """Multiply the losses of each round by the factor to the power of its number."""

    def change(row: Row) -> None:
        if row["quantity"] == "loss":
            row["value"] = repr(float(row["value"]) * factor ** int(row["round"]))

    change_rows(folder, "metrics", change)


def forge(folder: Path, *, metrics: tuple[str, ...] = ("gm", "pm"), losses: float = 1.0) -> None:
    """More right samples at every client, means that follow, other losses, another processor, and all checksums.

    Args:
        metrics: whose samples; losses of all are edited.
        losses: the factor of a round's losses, to the power of its number.
    """
    rng = generator("tests", "forger", folder.name)
    clients = read_rows(folder, "clients")
    for row in clients:
        if row["metric"] in metrics and row["split"] == "test":
            row["correct"] = str(min(int(row["correct"]) + int(rng.integers(1, 3)), int(row["samples"])))
    write_rows(folder, "clients", clients)
    partition = json.loads((folder / "partition.json").read_text(encoding="utf-8"))
    expected = expected_means(counts_of(clients), partition)

    def follow(row: Row) -> None:
        key = tuple(row[column] for column in ("round", "metric", "on", "mean", "split"))
        if row["quantity"] == "accuracy" and key in expected:
            row["value"] = repr(expected[key])

    change_rows(folder, "metrics", follow)
    drift_losses(folder, losses)
    for name in ("hits", "timeline"):  # what is packed does not have them
        (folder / f"{name}.csv").unlink(missing_ok=True)
        change_status(folder, lambda status, name=name: status["checksums"].pop(name, None))  # type: ignore[misc]
    claim_another_processor(folder)
