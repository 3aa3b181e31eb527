"""A page for each client: its data, its scores under each method, and what it gains over training alone."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bench.places import file_stems
from bench.store import inside
from reports.page.page import write_page
from reports.page.section import Section
from reports.reading.load import Cell, Figure, Store
from reports.tables import accuracy, fairness
from reports.tables.table import Column, Table, TableEntry, mean_entry, number

_GM = Figure("GM", "gm", "local", "train_size")
FOLDER = "clients"


def write_client_pages(store: Store, out: Path) -> list[Path]:
    """Write `clients/<task>/<client>/index.html` in a report's folder, with its tables as files beside it.

    Seeds of one partition, or of a partition by the data's own groups, have the same clients and are averaged. Where
    each seed draws a partition of its own, each has its own pages.

    Returns:
        The pages.
    """
    pages = []
    for protocol in store.protocols:
        part = store.of_protocol(protocol)
        if not len(part.figures):
            continue
        accuracies = fairness.with_diverged(fairness.client_accuracies(part), part)
        personal = _with_partitions(part, accuracies)
        generic = _with_partitions(part, fairness.with_diverged(fairness.client_accuracies(part, _GM), part))
        gains = _with_partitions(part, fairness.gains(accuracies, part))
        for (task, partition), of_partition in personal.groupby(["task", "partition"], sort=False):
            cell = next(c for c in part.cells if c.state == "done" and (c.task, _partition(c)) == (task, partition))
            folders = _folders(cell)
            for client in sorted(set(of_partition["client"])):
                frames = [_of_client(frame, str(task), str(partition), client) for frame in (personal, generic, gains)]
                folder = out / FOLDER / _slug(f"{task} {protocol} {partition}") / folders[client]
                inside.make_folder(out, folder)
                sections = [_scores(part, frames, gains, str(task), str(partition)), _data(cell, client)]
                title = f"{_name(cell, client)} ({task}, {partition})"
                pages.append(write_page(part, folder, title, _summary(cell, client), sections))
    return pages


def _with_partitions(store: Store, clients: pd.DataFrame) -> pd.DataFrame:
    partitions = {(cell.task, cell.seed): _partition(cell) for cell in store.cells if cell.state == "done"}
    places = zip(clients["task"], clients["seed"], strict=True)
    return clients.assign(partition=[partitions[place] for place in places])


def _partition(cell: Cell) -> str:
    """The name that tells a cell's clients from those of other cells of the task: the seed of a drawn partition."""
    settings = cell.view.settings
    drawn = not cell.json("partition").get("names")
    return (
        f"seed {settings.seed if settings.partition_seed is None else settings.partition_seed}" if drawn else "groups"
    )


def _of_client(frame: pd.DataFrame, task: str, partition: str, client: int) -> pd.DataFrame:
    return frame[(frame["task"] == task) & (frame["partition"] == partition) & (frame["client"] == client)]


def _name(cell: Cell, client: int) -> str:
    """The client's name in the data, e.g. a hospital's; else its number."""
    names = cell.json("partition").get("names")
    return str(names[client]) if names else f"client {client}"


def _folders(cell: Cell) -> list[str]:
    """A folder's name for each client's page."""
    return file_stems(_name(cell, client) for client in range(len(cell.json("partition")["counts"])))


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.") or "client"


def _summary(cell: Cell, client: int) -> str:
    record = cell.json("partition")
    held = sum(count > 0 for count in record["counts"][client])
    return (
        f"It trains on {record['n_train'][client]} samples of {held} of {len(record['counts'][client])} classes and is "
        f"tested on {record['n_test'][client]} samples of its own; each of them counts "
        f"{100 / max(1, record['n_test'][client]):.2f} points of accuracy."
    )


def _scores(store: Store, frames: Sequence[pd.DataFrame], gains: pd.DataFrame, task: str, partition: str) -> Section:
    """The client's accuracies under each method."""
    personal, generic, gain = frames
    of_task = gains[(gains["task"] == task) & (gains["partition"] == partition)]
    rows = []
    for row in store.rows:
        if not (personal["row"] == row).any():
            continue
        values = [
            mean_entry(frame[frame["row"] == row][column])
            for frame, column in ((personal, "accuracy"), (generic, "accuracy"), (gain, "gain"))
        ]
        all_gains = of_task[of_task["row"] == row]["gain"]
        share = number(100 * float((all_gains > 0).mean()) if len(all_gains) else math.nan, decimals=0)
        rows.append((row, (*values, share)))
    heads = ("personalized model", "generic model", "gain over alone", "clients that gain (%)")
    caption = (
        "Accuracy in percent on the client's own test samples, mean ± standard deviation over the seeds of its "
        "partition. Gain: of the personalized model, in points, over the same client's model when it trains alone "
        "(`local`); beside it the share of all clients that gain."
    )
    how = f"{accuracy.SELECTION_TEXT[store.chosen].capitalize()}."
    table = Table("scores", "Under each method", caption, "Method", tuple(map(Column, heads)), tuple(rows), how=how)
    alone = "" if len(of_task) else "The grid has no `local`: what the client gains cannot be said."
    return Section("scores", "Scores", alone, (table,))


def _data(cell: Cell, client: int) -> Section:
    """The client's training samples by class beside those of all clients."""
    counts = cell.json("partition")["counts"]
    total = [sum(of_class) for of_class in zip(*counts, strict=True)]
    rows = tuple(
        (str(label), (TableEntry(own_count, decimals=0), TableEntry(total[label], decimals=0)))
        for label, own_count in enumerate(counts[client])
    )
    caption = "Training samples by class, of the client and of all clients together."
    heads = (Column("this client"), Column("all clients"))
    return Section("data", "Data", "", (Table("data", "Its data", caption, "Class", heads, rows),))
