"""`bench export`: the models of a finished cell as files that predict anywhere."""

import importlib
import shlex
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import PluginFiles, RunFolder, load_plugins, starting
from bench.errors import UserError
from bench.runs.options import DataRoot


def export(
    run: RunFolder,
    cell: Annotated[
        str, typer.Argument(metavar="[CELL]", help="A cell's id, or the beginning of it; none: the only one.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The folder of the models, new or empty.")] = None,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes.")] = False,
) -> None:
    """Write a finished cell's models as files: one of each site, the generic one, and a script that predicts new rows.

    The cell must have kept its models (`bench run --keep best`).
    """
    from bench.results.results import load_run

    if out is None:
        raise UserError("bench export: say by --out into which folder the models go")
    load_plugins(plugin)
    views = {view.id: view for view in load_run(run).cells if view.id.startswith(cell)}
    if len(views) != 1:
        problem = f"{run} has no cell {cell!r}"
        if views:
            problem = f"{run} has {len(views)} cells" + (f" that begin with {cell!r}" if cell else "; name one of them")
        raise UserError(f"{problem}. `bench status {shlex.quote(str(run))}` lists them.")
    with starting("Reading the models ...", quiet=quiet):
        importlib.import_module("bench.results.export")
    notes = next(iter(views.values())).export(out, data_root)
    for note in notes if not quiet else []:
        typer.echo(f"note: {note}")
    typer.echo(out)
