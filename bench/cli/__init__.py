"""The command line. Each command imports its modules only when it is called, so that `bench --help` is fast."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from bench.cli import (
    catalogue,
    data,
    decide,
    evaluate,
    league,
    method,
    protocol,
    results,
    run,
    show,
    sites,
    speed,
    sweep,
    track,
    verify,
)
from bench.cli.commands import CommandGroups, Commands
from bench.errors import UserError, let_output_degrade, shortage
from bench.places import refused

GROUPS: dict[str, tuple[Callable[..., None] | Commands, ...]] = {
    "Run": (run.run, show.show, catalogue.grids, results.status, results.log, results.clean, sites.app),
    "Look": (results.results, results.report, results.compare, evaluate.evaluate, track.track, track.ui),
    "Tune": (sweep.sweep, decide.decide, league.app),
    "Publish": (verify.verify, verify.pack, verify.unpack, catalogue.cite, evaluate.export, protocol.app),
    "Data": (data.data, catalogue.datasets),
    "Develop": (catalogue.methods, catalogue.models, method.new_method, method.check_method, speed.speed),
}
"""The commands under the headings of `bench --help`."""

app = Commands(
    help="Benchmarks of personalized federated learning: a grid file in, the papers' tables out.",
    cls=CommandGroups,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for heading, commands in GROUPS.items():
    for command in commands:
        if isinstance(command, Commands):
            app.add_typer(command, name=command.info.name, rich_help_panel=heading)
        else:
            app.command(rich_help_panel=heading)(command)


def _print_version(value: bool) -> None:
    if value:
        from bench import __version__

        print(f"pFLeague {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def _check_start() -> None:
    """Refuse to begin in a folder that was deleted, or with an empty argument, which would be taken for this folder.

    Raises:
        UserError: the one or the other.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError(
            "the working folder was deleted: go to one that is there (cd) and give the command again"
        ) from None
    if "" in sys.argv:
        before = sys.argv[sys.argv.index("") - 1]
        raise UserError(f"the argument after {before} is empty: is a variable of the shell not set?")


def main() -> None:
    """The command `bench`: an error that the user can fix gives one message, no traceback, and exit status 2."""
    let_output_degrade()
    try:
        _check_start()
        app()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        full = shortage(error)
        if not (text := full or refused(error)):
            raise
        print(f"bench: {text}", file=sys.stderr)
        sys.exit(1 if full else 2)
