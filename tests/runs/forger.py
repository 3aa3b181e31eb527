"""Forges a finished cell as one who has read the code would: all that follows from an edit is edited, too."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

from bench.rng import generator
from bench.runs.verify.files import counts_of, expected_means, read_rows
from bench.store import store

Row = dict[str, str]

KINDS = {
    "another": "x86_64 AVX2 AMD avx avx2 fma3 L2=524288 MKL_CBWR=COMPATIBLE",
    "invented": "x86_64 AVX1024 Forge avx avx2 fma3 L2=524288",
}
"""What a path may name: a processor that there is, and none."""


def write_rows(folder: Path, name: str, rows: list[Row]) -> None:
    """Write a table and its checksum."""
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, store.COLUMNS[name], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    change_status(folder, lambda status: status["checksums"].update({name: store.checksum(folder / f"{name}.csv")}))


def change_status(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Edit `status.json`."""
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    change(status)
    store.write_json(folder / "status.json", status)


def change_rows(folder: Path, name: str, change: Callable[[Row], object]) -> None:
    """Change the rows of a table, and its checksum; a row that is left without a round goes."""
    rows = read_rows(folder, name)
    for row in rows:
        change(row)
    write_rows(folder, name, [row for row in rows if row["round"]])


def forge(
    folder: Path, *, metrics: tuple[str, ...] = ("gm", "pm"), losses: str = "drift", kind: str = "another"
) -> None:
    """More right samples at every client, means that follow, other losses, a processor, and all checksums.

    Args:
        metrics: whose samples; losses of all are edited.
        losses: `drift`: better ones, each by another factor; `scale`: all by one; `keep`.
        kind: of the processor, by `KINDS`; empty: as it is.
    """
    rng = generator("tests", "forger", folder.name)
    clients = read_rows(folder, "clients")
    for row in clients:
        if row["metric"] in metrics and row["split"] == "test":
            row["correct"] = str(min(int(row["correct"]) + int(rng.integers(1, 3)), int(row["samples"])))
    write_rows(folder, "clients", clients)
    partition = json.loads((folder / "partition.json").read_text(encoding="utf-8"))
    expected = expected_means(counts_of(clients), partition)
    table = read_rows(folder, "metrics")
    for row in table:
        key = tuple(row[column] for column in ("round", "metric", "on", "mean", "split"))
        if row["quantity"] == "loss":
            factor = {"drift": float(rng.uniform(0.9, 0.99)), "scale": 0.97, "keep": 1.0}[losses]
            row["value"] = repr(float(row["value"]) * factor)
        elif key in expected:
            row["value"] = repr(expected[key])
    write_rows(folder, "metrics", table)
    for name in ("hits", "timeline"):  # what is packed does not have them
        (folder / f"{name}.csv").unlink(missing_ok=True)
        change_status(folder, lambda status, name=name: status["checksums"].pop(name, None))  # type: ignore[misc]
    if kind:
        change_status(folder, lambda status: status["path"].update(cpu=KINDS[kind]))
