"""`bench run`: run the cells of a grid file and write their results to a run folder."""

import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bench.cli.cell_runner import (
    CpusPerCell,
    DeviceOption,
    DevicesPerCell,
    GpusPerCell,
    RayAddress,
    choose_runner,
    start_early,
    wished_device,
)
from bench.cli.starting import starting
from bench.cli.track import TrackingUri
from bench.errors import UserError
from bench.runs.launch import (
    check_folder,
    command_line,
    forget,
    preparing,
    print_remarks,
    print_unkept,
    work,
    write_run,
)

if TYPE_CHECKING:
    from bench.runs.plan import PlannedCell
    from bench.settings import Settings


PluginFiles = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="Load methods, data sets, partitions or models; repeatable."),
]

ExecutorOption = Annotated[
    Literal["auto", "sequential", "cohort", "debug"],
    typer.Option(
        help="How clients are trained. debug: one after another, never recorded; it names the round, client, step and "
        "layer where something was not finite for the first time."
    ),
]


def by_option(option: str) -> Any:
    """A hidden argument for a file that the user gave without `option`; its error says how to give the file."""

    def refuse(context: typer.Context, files: list[str] | None) -> None:
        if files:
            raise UserError(f"a file is given by {option}: bench {context.info_name} {option} {shlex.quote(files[0])}")

    return typer.Argument(hidden=True, is_eager=True, callback=refuse, metavar="")


def required(kind: str, option: str = "") -> Any:
    """A callback that refuses a missing grid or study with the names of those that the working folder has."""

    def refuse(context: typer.Context, name: str) -> str:
        if not name and not context.resilient_parsing:
            from bench.config.nearby import missing_option

            raise missing_option(kind, option, str(context.info_name))
        return name

    return refuse


def run(
    grid: Annotated[
        str,
        typer.Option(
            "--grid",
            callback=required("grid", "--grid "),
            show_default=False,
            help="A grid file, or the name of a built-in grid (`bench grids`).",
        ),
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting or an axis; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default: runs/<grid name>.")] = None,
    only: Annotated[str | None, typer.Option(help="Run these cells only, e.g. method=scd,seed=0.")] = None,
    plugin: PluginFiles = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells side by side; default: one per core on a CPU, one on a GPU.")
    ] = None,
    device: DeviceOption = None,
    ray: RayAddress = None,
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    devices_per_cell: DevicesPerCell = None,
    executor: ExecutorOption = "auto",
    allow_fallback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="On a GPU, go on tens of times slower where this loss or backend fails; repeatable."
        ),
    ] = None,
    lane_kernels: Annotated[
        bool,
        typer.Option(help="On a GPU and with `precision: bf16`, use kernels of the harness's own (Triton)."),
    ] = False,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    download: Annotated[bool, typer.Option(help="Fetch missing data files.")] = False,
    fresh: Annotated[bool, typer.Option(help="Forget the cells' earlier results.")] = False,
    take_over: Annotated[bool, typer.Option(help="Use the folder of another grid; its cells are kept.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only list the cells and estimate their cost.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Least time between two checkpoints.")] = 300.0,
    keep: Annotated[
        Literal["none", "server", "all", "best"],
        typer.Option(help="Models of a finished cell: best, of the reported round; all, the whole last state."),
    ] = "none",
    tracking_uri: TrackingUri = None,
    tracking: Annotated[bool, typer.Option(envvar="BENCH_TRACKING", help="Mirror the run in MLflow.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for each round; of a dry run, for each cell.")
    ] = False,
    _misplaced: Annotated[list[str] | None, by_option("--grid")] = None,
) -> None:
    """Run a grid's cells. Finished ones are skipped, half-done ones go on, failed ones are tried again."""
    with starting(f"bench run: {grid} is being read", quiet=quiet or dry_run):
        from bench.config.grid import load_grid
        from bench.plugin import allow, is_near, load_file, loaded_files

        for file in plugin or []:
            load_file(file)
        with allow(is_near) if dry_run else contextlib.nullcontext():
            loaded = load_grid(grid, set_ or [])  # a misspelt name is refused before torch is imported
        if not dry_run:
            start_early(ray)

        from bench.runs.plan import plan, select
        from bench.runs.tracking import mirror as tracked  # noqa: F401 (these imports are the slow ones)

    chosen = select(loaded.cells, only) if only else loaded.cells
    folder, wish = out or Path("runs") / loaded.name, wished_device(device)
    check_folder(folder, "grid", loaded.name, take_over=take_over)
    if not quiet:
        _print_warnings(chosen)
    if dry_run:
        from bench.cli.dry_run import print_forecast

        print_forecast(chosen, folder, data_root, wish, jobs, verbose=verbose)
        return
    from bench.engine.device import check_lane_kernels
    from bench.runs.cell import Options
    from bench.runs.plan import planned_remarks
    from bench.runs.progress import patience
    from bench.runs.tracking.mirror import choose_store
    from bench.store.store import FINISHED

    runner = choose_runner(ray, jobs, wish, cpus_per_cell, gpus_per_cell, devices_per_cell)
    for settings in chosen if lane_kernels else ():
        check_lane_kernels(runner.device, settings.precision)
    options = Options(
        device=runner.device,
        executor=executor,
        allow_fallback=tuple(allow_fallback or ()),
        lane_kernels=lane_kernels,
        threads=runner.threads(len(chosen)),
        cells=runner.sharing,
        data_root=data_root,
        checkpoint_seconds=checkpoint_seconds,
        keep=keep,
        plugins=loaded_files(),
    )
    mirror = choose_store(folder, tracking_uri) if tracking else None
    with patience(preparing(folder, len(loaded.cells)), quiet=quiet):
        planned = plan(loaded.cells, data_root, download=download)
        runner.check(chosen, data_root)
    asked = {id(settings) for settings in chosen}  # to compare settings takes seconds where there are thousands
    wanted = [cell for cell in planned if id(cell.settings) in asked]
    write_run(folder, loaded, planned)
    if fresh:
        forget(folder, wanted)
    if not quiet:
        print_remarks(planned_remarks(wanted))
        _print_others(folder)
        print_unkept(folder, wanted, keep)
    stopped = not work(folder, wanted, options.model_dump_json(), runner, mirror, quiet=quiet, verbose=verbose)
    _finish(folder, wanted, quiet=quiet)
    if stopped:
        print(f"stopped. The same command goes on: {command_line()}", file=sys.stderr)
        raise typer.Exit(130)
    states = _states(folder, wanted)
    for name, state in states:
        if state not in (*FINISHED, "failed"):
            print(f"{name}: its end could not be written. The same command goes on: {command_line()}", file=sys.stderr)
    if any(state not in FINISHED for _, state in states):
        raise typer.Exit(1)


def _print_others(folder: Path) -> None:
    """Print the number of finished cells in the folder that do not belong to the latest grid."""
    from bench.results.results import other_cells
    from bench.store.store import FINISHED

    finished = sum(cell.status.state in FINISHED for cell in other_cells(folder))
    if finished:
        place = shlex.quote(str(folder))
        print(
            f"{finished} finished cells here belong to other settings, code or data: kept, not shown. "
            f"`bench status {place} --all` lists them, `bench clean {place}` removes them.",
            file=sys.stderr,
        )


def _print_warnings(cells: "Sequence[Settings]") -> None:
    """Print warnings about settings that make a method pointless; the run continues, as the user may want them."""
    from bench.federation.setup import degenerate, make_method

    found = {f"{cell.name}: {text}": None for cell in cells for text in degenerate(make_method(cell))}
    untrained = {f"{cell.name}: {text}": None for cell in cells if (text := _no_steps(cell))}
    for text in [*found, *untrained]:
        print(f"warning: {text}", file=sys.stderr)


def _no_steps(settings: "Settings") -> str:
    """A warning if rounds have no local steps, else an empty string."""
    key = "epochs" if settings.steps is None else "steps"
    if getattr(settings, key):
        return ""
    return f"{key} = 0: a round has no local steps but those that the method counts itself"


def _finish(folder: Path, cells: "Sequence[PlannedCell]", *, quiet: bool) -> None:
    from bench.cli.results import print_summary
    from bench.results.remarks import end_remarks
    from bench.results.results import load_run

    place, found = shlex.quote(str(folder)), load_run(folder).cells
    failed = [cell for cell in found if cell.status.state in ("failed", "diverged")]
    here = {cell.id for cell in cells}
    for cell in failed:
        if cell.id in here:
            print(f"{cell.name}: {cell.status.state}: {cell.status.reason}", file=sys.stderr)
            print(f"  bench log {place} {cell.id}", file=sys.stderr)
    if not quiet:
        print_summary(folder)
        print_remarks(end_remarks(found))
        if any(cell.status.state == "done" for cell in found):
            print(f"bench report {place}  makes tables and figures of it", file=sys.stderr)


def _states(folder: Path, cells: "Sequence[PlannedCell]") -> list[tuple[str, str]]:
    from bench.results.results import cell_name
    from bench.store.store import read_status

    return [(cell_name(cell.settings), read_status(folder / cell.id, cell.settings).state) for cell in cells]
