"""A session: it plans, runs and continues the cells of a grid or study in a run folder.

`bench run`, `bench sweep`, `bench.run` and `bench.sweep` use it, so each refuses the same, warns of the same and writes
the same.
"""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from bench.config.digests import used_items
from bench.config.grid import Grid
from bench.plugin import loaded_files
from bench.results.cell_names import cell_name
from bench.results.remarks import end_remarks, unused_fallbacks
from bench.results.results import CellView, load_run, other_cells
from bench.results.saved_models import has_kept
from bench.runs import interactive
from bench.runs.callbacks import Callback, CallbackListener, check_callbacks, pack_callback
from bench.runs.cell_options import Options
from bench.runs.cell_runner import CellRunner, CellTask
from bench.runs.events import Event
from bench.runs.options import SessionOptions
from bench.runs.plan import PlannedCell, check_methods, listed, plan, planned_remarks, pointless, select
from bench.runs.progress import patience, reporter
from bench.runs.run_folder import check_there, choose_folder, forget, write_run
from bench.runs.tracking import DRAIN_SECONDS, STOP_SECONDS, Tracking, choose_store
from bench.runs.workers import LocalRunner
from bench.store import store
from bench.store.inside import check_place


class Stopped(KeyboardInterrupt):
    """The user stopped the run (Ctrl-C or SIGTERM), and its cells have written checkpoints; the same call goes on."""


class Session:
    """The cells of one grid, or the trials of one study, in a run folder.

    Args:
        grid: what is run; of a study the grid that `run.json` describes, with its name.
        out: the run folder; None: `runs/<grid name>`.
        only: which cells of the grid run, e.g. `method=scd,seed=0`, or several such texts; none: all.
        take_over: whether to use the folder of another grid.
        command: the user's command, for `run.json` and messages; None: it is a call from Python.

    Attributes:
        folder: the run folder.
        cells: those that run.

    Raises:
        UserError: no cell fits `only`, the folder cannot be used, or a method does not go with its settings.
    """

    def __init__(
        self,
        grid: Grid,
        out: Path | str | None,
        options: SessionOptions,
        *,
        kind: Literal["grid", "study"] = "grid",
        only: str | Sequence[str] = (),
        take_over: bool = False,
        command: str | None = None,
    ) -> None:
        self.grid = grid
        self.options = options
        self.cells = select(grid.cells, only) if only else grid.cells
        self.command = command
        self.folder = choose_folder(out, kind, grid.name, take_over=take_over)
        check_methods(self.cells)
        for text in [] if options.quiet else pointless(self.cells):
            print_warning(text)

    @property
    def again(self) -> str:
        """Sentence that says how the user goes on after a stop."""
        return f"The same command goes on: {self.command}" if self.command else "The same call goes on"

    @property
    def mirror(self) -> str | None:
        """The MLflow store that mirrors the run; None: none does.

        Raises:
            UserError: the user named no address of one.
        """
        return choose_store(self.folder, self.options.tracking_uri) if self.options.tracked else None

    def run(self, runner: CellRunner, *, fresh: bool = False, callbacks: Sequence[Callback] = ()) -> list[CellView]:
        """Run the cells: finished ones are skipped, half-done ones go on, failed ones are tried again.

        Returns:
            The cells as they ended.

        Raises:
            UserError: a cell cannot run here; no cell has begun then.
            Stopped: the user stopped the run.
        """
        mirror = self.mirror
        check_callbacks(callbacks)
        self.save_code()
        local = isinstance(runner, LocalRunner)  # on other machines the callbacks' code may be missing
        packed_callbacks = {id(callback): text for callback in callbacks if local and (text := pack_callback(callback))}
        runner.threads(len(self.cells))  # Ray's nodes are asked for so many cores
        cells = self.plan(runner)  # which finds out how many cells share a GPU
        options = self.cell_options(runner, len(self.cells), tuple(packed_callbacks.values()))
        all_cells = cells
        if len(self.cells) < len(self.grid.cells):
            all_cells = listed(self.grid.cells, cells, self.folder, self.options.data_root)
        write_run(self.folder, self.grid, all_cells, self.command)
        if fresh:
            forget(self.folder, cells)
        if not self.options.quiet:
            print_notes(planned_remarks(cells))
            _print_other_cells(self.folder)
            _print_missing_models(self.folder, cells, self.options.keep)
        by_id = {cell.id: cell.settings for cell in cells}
        local_callbacks = [callback for callback in callbacks if id(callback) not in packed_callbacks]
        names = [type(callback).__name__ for callback in local_callbacks if callback.in_worker]
        if names and not self.options.quiet:
            print_notes(
                [f"the callback {name} is called here, with rows alone: workers cannot have it" for name in names]
            )
        ends: dict[str, str] = {}  # of cells by id: a reason that could not be written is in the last event only
        listeners: list[Callable[[Event], None]] = [lambda event: ends.update({event.cell: event.text})]
        if local_callbacks:
            listeners.append(CallbackListener(self.folder, by_id, local_callbacks, print_warning))
        quiet, verbose = self.options.quiet, self.options.verbose
        completed = work(self.folder, cells, options, runner, mirror, quiet=quiet, verbose=verbose, listeners=listeners)
        views = [cell for cell in load_run(self.folder).cells if cell.id in by_id]
        self._print_ends(views, ends, completed=completed)
        if not completed:
            raise Stopped
        return views

    def save_code(self) -> None:
        """Save a notebook's definitions that the cells use, as workers need files; ids rest on them, too.

        Raises:
            UserError: a file cannot hold one of them.
        """
        used = {(part.kind, name) for cell in self.grid.cells for part, name in used_items(cell)}
        for file in interactive.save(self.folder, used):
            if not self.options.quiet:
                print_notes([f"{file} is code of this notebook or script; --plugin or bench.load_file takes it later"])

    def cell_options(self, runner: CellRunner, cells: int | None, callbacks: tuple[str, ...] = ()) -> Options:
        """The options of each of so many cells; None: more than there is room for."""
        options = self.options
        return Options(
            device=runner.device,
            executor=options.executor,
            threads=runner.threads(cells),
            allow_fallback=options.allow_fallback,
            cells=runner.sharing,
            data_root=options.data_root,
            checkpoint_seconds=options.checkpoint_seconds,
            keep=options.keep,
            plugins=loaded_files(),
            callbacks=callbacks,
        )

    def plan(self, runner: CellRunner) -> list[PlannedCell]:
        """Plan the cells, and check that the runner can run them.

        Raises:
            UserError: data are missing or damaged, or something is missing where cells would run.
        """
        text = f"{self.folder}: {len(self.cells)} cells are being prepared (data, partitions, ids)"
        with patience(text, quiet=self.options.quiet):
            planned = plan(self.cells, self.options.data_root, download=self.options.download)
            runner.check(self.cells, self.options.data_root)
        return planned

    def _print_ends(self, cells: Sequence[CellView], ends: Mapping[str, str], *, completed: bool) -> None:
        """Print why cells have no results, and remarks on all cells of the run."""
        for cell in cells:
            state = cell.status.state
            if state in ("failed", "diverged"):
                print(f"{cell.name}: {state}: {cell.status.reason}", file=sys.stderr)
                print(f"  bench log {shlex.quote(str(self.folder))} {cell.id}", file=sys.stderr)
            elif completed and state not in store.FINISHED:
                reason = f": {ends[cell.id]}" if ends.get(cell.id) else f". {self.again}"
                print(f"{cell.name}: its end could not be written{reason}", file=sys.stderr)
        if not self.options.quiet:
            print_notes(unused_fallbacks(self.options.allow_fallback, cells))
            print_notes(end_remarks(load_run(self.folder).cells))


def print_notes(texts: Iterable[str]) -> None:
    """Print notes and remarks (`bench.results.remarks`), a line each."""
    for text in texts:
        print(f"note: {text}", file=sys.stderr)


def print_warning(text: str) -> None:
    """Print a warning, also where no progress is shown."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _print_other_cells(folder: Path) -> None:
    """Print the number of finished cells in the folder that do not belong to the latest grid."""
    count = sum(cell.status.state in store.FINISHED for cell in other_cells(folder))
    if count:
        place = shlex.quote(str(folder))
        print(
            f"{count} finished cells here belong to other settings, code or data: kept, not shown. "
            f"`bench status {place} --all` lists them, `bench clean {place} --yes` removes them.",
            file=sys.stderr,
        )


def _print_missing_models(folder: Path, cells: Sequence[PlannedCell], keep: str) -> None:
    """Print how many finished cells lack the models that `--keep` asks for, as they ran without it."""
    statuses = {cell.id: store.read_status(folder / cell.id, cell.settings) for cell in cells if keep != "none"}
    ids = [id for id, status in statuses.items() if status.state == "done"]
    missing = sum(not has_kept(folder / id, keep) for id in ids)
    if missing:
        print(
            f"{missing} finished cells have nothing of --keep {keep}, as they ran without it: --fresh runs them again",
            file=sys.stderr,
        )


def work(
    folder: Path,
    cells: Sequence[PlannedCell],
    options: Options,
    runner: CellRunner,
    mirror: str | None = None,
    *,
    quiet: bool = True,
    verbose: bool = False,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> bool:
    """Run those of some cells that are not finished, side by side, whether a session plans them or not.

    Args:
        mirror: MLflow store that mirrors the run.
        verbose: print a line for each round.
        listeners: called with each event of a cell.

    Returns:
        False if the user stopped it.
    """
    statuses = {cell.id: store.read_status(check_place(folder, folder / cell.id), cell.settings) for cell in cells}
    for id, status in statuses.items():
        store.remove_leftovers(folder / id, status)
    unfinished = {cell.id: cell.settings for cell in cells if statuses[cell.id].state not in store.FINISHED}
    if not quiet:
        total = len({cell.id for cell in cells})
        skipped = f", {total - len(unfinished)} finished before" if total > len(unfinished) else ""
        local = isinstance(runner, LocalRunner) and bool(unfinished)
        together = f", {min(runner.sharing, len(unfinished))} at a time" if local else ""
        print(f"{folder}: {len(unfinished)} cells to run{skipped}{together}", file=sys.stderr, flush=True)
    names = {id: cell_name(settings) for id, settings in unfinished.items()}
    rounds = {id: settings.rounds for id, settings in unfinished.items()}
    tasks = [CellTask(settings, folder / id, options) for id, settings in unfinished.items()]
    tracking = Tracking(folder, mirror) if mirror and (tasks or other_cells(folder)) else None
    if tracking:
        listeners = [*listeners, CallbackListener(folder, unfinished, [tracking], print_warning)]
    of_a_run = (folder / "run.json").exists()  # cells that are verified run in a folder without it
    with reporter(names, rounds, quiet=quiet, verbose=verbose) as report:

        def tell(event: Event) -> None:
            if of_a_run:
                check_there(folder)
            report.event(event)
            if event.warning:
                print_warning(event.warning)
            for listener in listeners:
                listener(event)

        completed = runner.run(tasks, tell)
    if tracking:
        tracking.finish(DRAIN_SECONDS if completed else STOP_SECONDS)
    return completed
