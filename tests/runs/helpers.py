"""Read run folders and processes from outside."""

import multiprocessing
import time
from pathlib import Path

from bench.runs import store
from bench.runs.results import CellView, load_run
from bench.runs.workers import PRELOAD
from tests.warm import Started

TABLES = ("metrics.csv", "clients.csv", "hits.csv", "ledger.csv", "work.csv", "timeline.csv")
RESULTS = ("settings.json", "status.json", "partition.json", *TABLES)
"""Files of a cell that must be the same whatever interrupts the cell."""

CHILDREN = multiprocessing.get_context("forkserver")
"""Starts processes that a test kills. A process forked from that of the tests could not train: after a fork
autograd's threads raise an error."""
CHILDREN.set_forkserver_preload([*PRELOAD, "pytest", "sklearn.cluster", "sweeps.run"])


def cells(run: Path) -> dict[str, CellView]:
    """Cells by label."""
    return {cell.label: cell for cell in load_run(run).cells}


def states(run: Path) -> dict[str, store.CellState]:
    """State by label."""
    return {label: cell.status.state for label, cell in cells(run).items()}


def contents(run: Path) -> dict[str, bytes]:
    """The result files of all cells."""
    return {f"{path.parent.name}/{name}": path.read_bytes() for name in RESULTS for path in run.glob(f"*/{name}")}


def wait_for(process: Started, run: Path, rounds: int) -> None:
    """Wait until one cell has finished so many rounds."""
    deadline = time.monotonic() + 120
    while max((path.read_bytes().count(b"\n") - 1 for path in run.glob("*/ledger.csv")), default=0) < rounds:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def forked_by(parent: int) -> list[int]:
    """The children of a process that are a fork server, or forked from one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            text = folder.joinpath("cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if above == parent and (b"forkserver" in text or b"tests.warm" in text):
            found.append(int(folder.name))
    return found
