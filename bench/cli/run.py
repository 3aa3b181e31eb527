"""`bench run`: run the cells of a grid file and write their results to a run folder."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import (
    DryRun,
    MeasureRounds,
    Only,
    PluginFiles,
    command_line,
    load_plugins,
    required,
    start_early,
    starting,
    with_session_options,
)
from bench.runs.options import SessionOptions


@with_session_options()
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
    fresh: Annotated[bool, typer.Option(help="Forget the cells' earlier results.")] = False,
    take_over: Annotated[bool, typer.Option(help="Use the folder of another grid; its cells are kept.")] = False,
    dry_run: DryRun = False,
    measure: MeasureRounds = False,
    *,
    options: SessionOptions,
) -> None:
    """Run a grid's cells. Finished ones are skipped, half-done ones go on, failed ones are tried again."""
    with starting(f"bench run: {grid} is being read", quiet=options.quiet or dry_run):
        from bench.config.grid import load_grid
        from bench.plugin import allow, is_near

        load_plugins(plugin)
        with allow(is_near) if dry_run else contextlib.nullcontext():
            loaded_grid = load_grid(grid, set_ or [])

        from bench.runs.plan import select  # after the grid was read, as these take pandas
        from bench.runs.run_folder import choose_folder

        folder = choose_folder(out, "grid", loaded_grid.name, take_over=take_over)
        chosen = select(loaded_grid.cells, only) if only else loaded_grid.cells
        if dry_run:
            from bench.cli.dry_run import print_forecast

            builtin = not set_ and not Path(grid).exists()
            print_forecast(chosen, folder, options, known=builtin, measure=measure)
            return
        start_early(options.ray)  # what is refused above, is refused before torch is imported

        from bench.api.run import choose_runner  # these imports are the slow ones
        from bench.runs.session import Session, Stopped
        from bench.store.store import FINISHED

    session = Session(loaded_grid, folder, options, only=only or (), take_over=take_over, command=command_line())
    try:
        views = session.run(choose_runner(options), fresh=fresh)
    except Stopped:
        _finish(session.folder, quiet=options.quiet)
        print(f"stopped. {session.again}", file=sys.stderr)
        raise typer.Exit(130) from None
    _finish(session.folder, quiet=options.quiet)
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
