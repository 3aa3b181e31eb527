"""`bench run`: run the cells of a grid file and write their results to a run folder."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.cell_runner import (
    CpusPerCell,
    DeviceOption,
    DevicesPerCell,
    GpusPerCell,
    Jobs,
    RayAddress,
    command_line,
    start_early,
    wished_device,
)
from bench.cli.starting import starting
from bench.cli.track import Tracking, TrackingUri
from bench.errors import UserError

PluginFiles = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE.py", help="Load methods, data sets, partitions or models; repeatable."),
]

Only = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE[,...]", help="These cells only, e.g. method=scd,seed=0; repeatable."),
]

ExecutorOption = Annotated[
    str,
    typer.Option(
        metavar="auto|sequential|cohort|debug",
        help="How clients are trained. debug: one after another, never recorded; it names the round, client, step and "
        "layer where something was not finite for the first time.",
    ),
]

FallbackOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="On a GPU, go on tens of times slower where this loss or backend fails; repeatable."
    ),
]

LaneKernels = Annotated[
    bool, typer.Option(help="On a GPU and with `precision: bf16`, use kernels of the harness's own (Triton).")
]

CheckpointSeconds = Annotated[float, typer.Option(help="Least time between two checkpoints.")]


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
    only: Only = None,
    plugin: PluginFiles = None,
    jobs: Jobs = None,
    device: DeviceOption = None,
    ray: RayAddress = None,
    cpus_per_cell: CpusPerCell = None,
    gpus_per_cell: GpusPerCell = None,
    devices_per_cell: DevicesPerCell = None,
    executor: ExecutorOption = "auto",
    allow_fallback: FallbackOption = None,
    lane_kernels: LaneKernels = False,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    download: Annotated[bool, typer.Option(help="Fetch missing data files.")] = False,
    fresh: Annotated[bool, typer.Option(help="Forget the cells' earlier results.")] = False,
    take_over: Annotated[bool, typer.Option(help="Use the folder of another grid; its cells are kept.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only count the cells and estimate their cost.")] = False,
    measure: Annotated[bool, typer.Option(help="In a dry run: time rounds, for a minute at most.")] = False,
    checkpoint_seconds: CheckpointSeconds = 300.0,
    keep: Annotated[
        str,
        typer.Option(
            metavar="none|server|all|best",
            help="Models of a finished cell: best, of the reported round; all, the whole last state.",
        ),
    ] = "none",
    tracking_uri: TrackingUri = None,
    tracking: Tracking = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A line for each round; of a dry run, for each cell.")
    ] = False,
    _misplaced: Annotated[list[str] | None, by_option("--grid")] = None,
) -> None:
    """Run a grid's cells. Finished ones are skipped, half-done ones go on, failed ones are tried again."""
    with starting(f"bench run: {grid} is being read", quiet=quiet or dry_run):
        from bench.config.grid import load_grid
        from bench.plugin import allow, is_near, load_file
        from bench.runs.session_options import SessionOptions

        for file in plugin or []:
            load_file(file)
        with allow(is_near) if dry_run else contextlib.nullcontext():
            loaded_grid = load_grid(grid, set_ or [])
        options = SessionOptions.of(
            jobs=jobs,
            device=wished_device(device),
            ray=ray,
            cpus_per_cell=cpus_per_cell,
            gpus_per_cell=gpus_per_cell,
            devices_per_cell=devices_per_cell,
            executor=executor,
            allow_fallback=allow_fallback or (),
            lane_kernels=lane_kernels,
            data_root=data_root,
            download=download,
            checkpoint_seconds=checkpoint_seconds,
            keep=keep,
            tracking_uri=tracking_uri,
            tracking=tracking,
            quiet=quiet,
            verbose=verbose,
        )

        from bench.runs.plan import select  # after the grid was read, as these take pandas
        from bench.runs.run_folder import check_folder

        folder = out or Path("runs") / loaded_grid.name
        check_folder(folder, "grid", loaded_grid.name, take_over=take_over)
        chosen = select(loaded_grid.cells, only) if only else loaded_grid.cells
        if dry_run:
            from bench.cli.dry_run import print_outline

            print_outline(chosen, data_root)
        else:  # what is refused above, is refused before torch is imported
            start_early(ray)

        from bench.api.runner import choose_runner  # these imports are the slow ones
        from bench.runs.session import Session, Stopped
        from bench.store.store import FINISHED

    session = Session(loaded_grid, folder, options, only=only or (), take_over=take_over, command=command_line())
    if dry_run:
        from bench.cli.dry_run import print_forecast

        forecast = session.cells, session.folder, data_root, options.device, jobs
        print_forecast(*forecast, verbose=verbose, measure=measure)
        return
    try:
        views = session.run(choose_runner(options), fresh=fresh)
    except Stopped:
        _finish(session.folder, quiet=quiet)
        print(f"stopped. {session.again}", file=sys.stderr)
        raise typer.Exit(130) from None
    _finish(session.folder, quiet=quiet)
    if any(cell.status.state not in FINISHED for cell in views):
        raise typer.Exit(1)


def _finish(folder: Path, *, quiet: bool) -> None:
    from bench.cli.results import print_summary
    from bench.results.results import load_run

    if quiet:
        return
    print_summary(folder)
    if any(cell.status.state == "done" for cell in load_run(folder).cells):
        print(f"bench report {shlex.quote(str(folder))}  makes tables and figures of it", file=sys.stderr)
