"""Starting a run's cells: what `run.json` says of them, and the workers' progress.

The commands and `bench.run` share it. Torch is imported when it is needed, so that `bench --help` answers at once.
"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.config.grid import Grid
    from bench.results.results import RunView
    from bench.runs.cell import Keep
    from bench.runs.cell_runner import CellRunner
    from bench.runs.plan import PlannedCell


STUDY = "study.json"
"""In a run folder: the study that filled it."""


def run(
    grid: "Grid | str | Path",
    out: Path | str | None = None,
    *,
    jobs: int | None = None,
    device: str = "auto",
    data_root: Path | str = "data",
    download: bool = False,
    keep: "Keep" = "none",
    fresh: bool = False,
    take_over: bool = False,
    quiet: bool = False,
) -> "RunView":
    """Run a grid from Python, like `bench run`: finished cells are skipped, half-done ones go on.

    In a script, call it under `if __name__ == "__main__":`, as workers are processes of their own.

    Args:
        grid: what `load_grid` returned, a grid file, or the name of a built-in grid.
        out: the run folder; default: `runs/<grid name>`.
        jobs: cells side by side; default: one per core on a CPU, one on a GPU.
        device: `auto`, `cpu` or `cuda`.
        data_root: where data files lie; `download`: fetch what is missing.
        keep: what `cell.model()` finds afterwards: `best`, models of the reported round; `all`, of the last one.
        fresh: forget the cells' earlier results.
        take_over: use the folder of another grid; its cells stay there, and are no longer shown.
        quiet: no progress.

    Returns:
        The run folder's view, with its results as pandas frames.

    Raises:
        UserError: a problem in the grid or its data, no such device, or the folder is another grid's.
        KeyboardInterrupt: the user stopped it; another call goes on.
    """
    from bench.config.code_digests import used_items
    from bench.config.grid import Grid, load_grid
    from bench.plugin import loaded_files
    from bench.results.results import load_run
    from bench.runs.cell import Options
    from bench.runs.interactive import save
    from bench.runs.plan import plan, planned_remarks
    from bench.runs.progress import patience
    from bench.runs.workers import LocalRunner

    loaded = grid if isinstance(grid, Grid) else load_grid(str(grid), [])
    folder = Path(out) if out else Path("runs") / loaded.name
    check_folder(folder, "grid", loaded.name, take_over=take_over)
    runner = LocalRunner(jobs, device)
    for file in save(folder, {item for cell in loaded.cells for item in used_items(cell)}):
        if not quiet:
            print(f"note: {file} is the notebook's code; --plugin or bench.load_file takes it later", file=sys.stderr)
    options = Options(
        device=runner.device,
        threads=runner.threads(len(loaded.cells)),
        cells=runner.sharing,
        data_root=Path(data_root),
        keep=keep,
        plugins=loaded_files(),
    )
    with patience(preparing(folder, len(loaded.cells)), quiet=quiet):
        planned = plan(loaded.cells, options.data_root, download=download)
    write_run(folder, loaded, planned)
    if fresh:
        forget(folder, planned)
    if not quiet:
        print_remarks(planned_remarks(planned))
        print_unkept(folder, planned, keep)
    if not work(folder, planned, options.model_dump_json(), runner, None, quiet=quiet, verbose=False):
        raise KeyboardInterrupt
    return load_run(folder)


def check_folder(folder: Path, kind: Literal["grid", "study"], name: str, *, take_over: bool = False) -> None:
    """Check that a folder can be the run folder of a grid or study, before anything is measured or read.

    An edited grid goes into its folder again, by its name. The cells of another one would vanish from results and
    reports, so its folder is only taken over where the user asks for that. A study has its trials in its folder, which
    nobody takes over: neither another study nor a grid of the same name.

    Raises:
        UserError: the path is a file or leads through one, or is not text in UTF-8, as run.json must name it; or the
            folder is another grid's or study's.
    """
    from bench.store.documents import read_run_file

    if any("\ud800" <= letter <= "\udfff" for letter in str(folder)):
        raise UserError(f"--out {str(folder)!a}: its name is not text in UTF-8; give another one")
    place = next((place for place in (folder, *folder.parents) if place.exists()), None)
    if place and not place.is_dir():
        raise UserError(f"--out {folder}: {place} is a file, not a folder")
    info = read_run_file(folder)
    if info is None or take_over:
        return
    before = "study" if (folder / STUDY).exists() else "grid"
    if (before, info.get("grid", name)) == (kind, name):
        return
    remedy = "Give another --out"
    if kind == "grid":
        remedy += (
            ", or --take-over (in Python take_over=True) to use the folder for this grid: the others' cells stay "
            "there, but results and reports no longer show them"
        )
    raise UserError(f"{folder} has the cells of {before} {info['grid']!r}, and this is {kind} {name!r}. {remedy}")


def preparing(folder: Path, cells: int) -> str:
    """Say what goes on before the first of many cells runs."""
    return f"{folder}: {cells} cells are being prepared (data, partitions, ids)"


def forget(folder: Path, cells: "Sequence[PlannedCell]") -> None:
    """Remove what cells have, so that they start again.

    Raises:
        UserError: another process works on one.
    """
    from bench.store import store

    for cell in cells:
        try:
            store.forget(folder / cell.id)
        except store.BusyError as error:
            raise UserError(f"--fresh: {error}. Stop that `bench run` first.") from None


def print_remarks(texts: "Sequence[str]") -> None:
    """Print the remarks of `bench.results.remarks`."""
    for text in texts:
        print(f"note: {text}", file=sys.stderr)


def print_unkept(folder: Path, cells: "Sequence[PlannedCell]", keep: str) -> None:
    """Say how many finished cells have no models to use: `--keep` comes too late for them."""
    from bench.results.saved_models import has_kept
    from bench.store import store

    statuses = {cell.id: store.read_status(folder / cell.id, cell.settings) for cell in cells if keep != "none"}
    done = [id for id, status in statuses.items() if status.state == "done"]
    without = sum(not has_kept(folder / id, keep) for id in done)
    if without:
        print(
            f"{without} finished cells have nothing of --keep {keep}, as they ran without it: --fresh runs them again",
            file=sys.stderr,
        )


def write_run(folder: Path, grid: "Grid", planned: "Sequence[PlannedCell]") -> None:
    """Write `run.json`: the latest grid, its cells in order, notes on their data, and every command so far."""
    from bench.runs.plan import data_notes
    from bench.store import store
    from bench.store.documents import read_run_file
    from bench.store.provenance import provenance

    cells = [{"id": cell.id, "label": cell.settings.name, "settings": cell.settings.model_dump()} for cell in planned]
    notes = {"notes": known} if (known := data_notes(planned)) else {}
    entry = {"command": command_line(), **provenance()}
    make_folder(folder)
    with store.locked(folder, wait=True):
        before = read_run_file(folder) or {}
        history = [*before.get("history", []), entry]
        created = before.get("created", entry["time"])
        described = {"grid": grid.name, "published": grid.published, "created": created, **entry, **notes}
        store.write_json(folder / "run.json", {**described, "source": grid.source, "history": history, "cells": cells})


def make_folder(folder: Path) -> None:
    """Make a run folder where there is none.

    Raises:
        UserError: it lies where the system makes no folders, as in /proc.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        raise UserError(f"--out {folder}: the system makes no folder there; give another one") from None


def work(
    folder: Path,
    cells: "Sequence[PlannedCell]",
    options: str,
    runner: "CellRunner",
    mirror: str | None,
    *,
    quiet: bool,
    verbose: bool,
) -> bool:
    """Run what is not finished, side by side; False if the user stopped it."""
    from bench.results.results import cell_name, other_cells
    from bench.runs.cell_runner import CellTask
    from bench.runs.progress import reporter
    from bench.runs.tracking.process import DRAIN_SECONDS, STOP_SECONDS, Follower
    from bench.store.inside import check_place
    from bench.store.store import FINISHED, read_status, remove_leftovers

    statuses = {cell.id: read_status(check_place(folder, folder / cell.id), cell.settings) for cell in cells}
    for id, status in statuses.items():
        remove_leftovers(folder / id, status)
    unfinished = {cell.id: cell.settings for cell in cells if statuses[cell.id].state not in FINISHED}
    if not quiet:
        total = len({cell.id for cell in cells})
        skipped = f", {total - len(unfinished)} finished before" if total > len(unfinished) else ""
        print(f"{folder}: {len(unfinished)} cells to run{skipped}", file=sys.stderr, flush=True)
    names = {id: cell_name(settings) for id, settings in unfinished.items()}
    rounds = {id: settings.rounds for id, settings in unfinished.items()}
    tasks = [CellTask(settings, folder / id, options) for id, settings in unfinished.items()]
    follower = Follower(folder, mirror) if mirror and (tasks or other_cells(folder)) else None
    with reporter(names, rounds, quiet=quiet, verbose=verbose) as report:
        completed = runner.run(runner.order(tasks), report.event)
    if follower:
        follower.finish(DRAIN_SECONDS if completed else STOP_SECONDS)
    return completed


def command_line() -> str:
    return shlex.join(["bench", *sys.argv[1:]])
