"""`bench evaluate`: kept models of a run on further tests, without training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bench.cli.cell_runner import DeviceOption, wished_device
from bench.cli.results import RunFolder
from bench.cli.run import Only, PluginFiles
from bench.errors import UserError


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
    device: DeviceOption = None,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Score the kept models of finished cells on further tests (default: the grid's); nothing is trained.

    Exit status 1: a cell's files are damaged, and it was left out.
    """
    from bench.api.evaluate import chosen_cells
    from bench.api.evaluate import evaluate as evaluate_run
    from bench.plugin import load_file
    from bench.results.results import damaged

    for file in plugin or []:
        load_file(file)
    values = [value for text in tests or [] for value in _values(text)]
    view = evaluate_run(
        run,
        tests=values,
        metrics=metrics or (),
        only=only or (),
        device=wished_device(device),
        data_root=data_root,
        quiet=quiet,
    )
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
