"""`bench evaluate` and `bench export`: kept models of a run on further tests, without training, and as files."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.commands import Only, PluginFiles, RunFolder, given, load_plugins, one_cell, starting
from bench.errors import UserError
from bench.runs.options import DataRoot, Device, Quiet


def evaluate(
    run: RunFolder,
    tests: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEST", help="global, others, or as in a grid '{name: corrupted, severity: 3}'; repeatable."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A score, such as auroc; repeatable.")
    ] = None,
    only: Only = None,
    plugin: PluginFiles = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Score kept models on further tests, by default the grid's. Nothing is trained.

    Exit status 1: a cell's files are damaged, and it was left out.
    """
    arguments = given(locals(), "plugin", "tests")

    from bench.api.evaluate import chosen_cells
    from bench.api.evaluate import evaluate as evaluate_run
    from bench.results.results import damaged

    load_plugins(plugin)
    values = [value for text in tests or [] for value in _values(text)]
    view = evaluate_run(tests=values, **arguments)
    if damaged(chosen_cells(view, only or ())):  # they were named
        raise typer.Exit(1)


def _values(text: str) -> list[Any]:
    """The tests in an option: one, or a list of some.

    Raises:
        UserError: it is no YAML.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(
            f"--tests {text}: write a name, or a mapping such as '{{name: corrupted, severity: 3}}'"
        ) from None
    return value if isinstance(value, list) else [value]


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
    """Write a cell's models as files, and a script that predicts new rows.

    The cell must have kept its models (`bench run --keep best`).
    """
    if out is None:
        raise UserError("bench export: say by --out into which folder the models go")
    load_plugins(plugin)
    view = one_cell(run, cell)
    with starting("Reading the models ...", quiet=quiet):
        importlib.import_module("bench.results.export")
    notes = view.export(out, data_root).notes
    for note in notes if not quiet else []:
        typer.echo(f"note: {note}")
    typer.echo(out)
