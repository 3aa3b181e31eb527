"""Read run folders and processes from outside."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.config.grid import load_grid
from bench.results.results import CellView, load_run
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.runs.run_folder import write_run
from bench.runs.workers import PRELOAD
from bench.settings import Settings
from bench.store import store
from tests.warm import PATIENCE, Started

TABLES = ("metrics.csv", "clients.csv", "hits.csv", "ledger.csv", "work.csv", "timeline.csv")
RESULTS = ("settings.json", "status.json", "partition.json", *TABLES)
"""Files of a cell that must be the same whatever interrupts the cell."""

OPTIONS = Options(device="cpu", executor="sequential")
EVERY_ROUND = OPTIONS.model_copy(update={"checkpoint_seconds": 0})
"""A checkpoint in every round."""
BEST = OPTIONS.model_copy(update={"keep": "best"})

TIMELINE: list[dict[str, Any]] = [
    {"round": 2, "shifts": [{"name": "concept_shift", "clusters": 2}]},
    {"round": 4, "exchange": 1.0, "leave": [0, 0], "arrive": [3, 3]},
]
"""Changes of the data of a cell of at least five rounds."""

CHILDREN = multiprocessing.get_context("forkserver")
"""Starts processes that a test kills. A process forked from that of the tests could not train: after a fork
autograd's threads raise an error."""
CHILDREN.set_forkserver_preload([*PRELOAD, "pytest", "sklearn.cluster", "sweeps.run"])


def view(settings: Settings, folder: Path) -> CellView:
    """A cell's folder as whoever reads a run sees it."""
    return CellView(folder.name, settings.name, settings, folder, store.read_status(folder))


def finished(settings: Settings, folder: Path, options: Options = OPTIONS) -> CellView:
    """A cell that is run to its end in a folder."""
    status = run_cell(settings, folder, options)
    assert status.state == "done", status.reason
    return view(settings, folder)


def cells(run: Path) -> dict[str, CellView]:
    """Cells by label."""
    return {cell.label: cell for cell in load_run(run).cells}


def states(run: Path) -> dict[str, store.CellState]:
    """State by label."""
    return {label: cell.status.state for label, cell in cells(run).items()}


def until(there: Callable[[], bool]) -> None:
    """Wait until something is there."""
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def contents(run: Path) -> dict[str, bytes]:
    """The result files of all cells."""
    return {f"{path.parent.name}/{name}": path.read_bytes() for name in RESULTS for path in run.glob(f"*/{name}")}


def undisturbed(run: Path, folder: Path) -> dict[str, bytes]:
    """The result files of a run's cells, each run here in a folder from its beginning to its end."""
    for cell in load_run(run).cells:
        run_cell(cell.settings, folder / cell.id, Options(device="cpu"))
    return contents(folder)


def wait_for(process: Started, run: Path, rounds: int) -> None:
    """Wait until one cell has finished so many rounds."""
    deadline = time.monotonic() + PATIENCE
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


def make_run(
    run: Path,
    arrays: Path,
    methods: Sequence[str],
    options: Options = OPTIONS,
    **settings: object,
) -> Path:
    """Make a run of small finished cells in this process, one for each method."""
    common = {"datasets": [{"name": "npz", "path": str(arrays)}], "alphas": [1.0], "seeds": [0], "clients": 4}
    content = {**common, "methods": list(methods), "model": "logistic", "lr": 0.5, **settings}
    run.parent.mkdir(parents=True, exist_ok=True)
    file = run.with_name(f"{run.name}.yaml")
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    grid = load_grid(str(file))
    planned = plan(grid.cells, Path("data"), download=False)
    write_run(run, grid, planned)
    for cell in planned:
        finished(cell.settings, run / cell.id, options)
    return run


def results(folder: Path) -> dict[str, bytes]:
    """The bytes that must not depend on interruptions."""
    return {name: (folder / name).read_bytes() for name in RESULTS}


def stop_after(versions: int) -> Callable[[], bool]:
    """A stop request that comes after so many server versions."""
    calls = iter([False] * versions)
    return lambda: next(calls, True)
