"""The commands. Each imports its modules only when it is called, so that `bench --help` is fast."""

from collections.abc import Callable
from typing import Annotated

import typer

from bench.cli import (
    catalogue,
    data,
    decide,
    evaluate,
    from_pfllib,
    league,
    method,
    peer,
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

GROUPS: dict[str, tuple[Callable[..., None] | Commands, ...]] = {
    "Run": (run.run, show.show, catalogue.grids, results.status, results.log, results.clean, sites.app),
    "Look": (results.results, results.report, results.compare, evaluate.evaluate, track.track, track.ui),
    "Tune": (sweep.sweep, decide.decide, league.app),
    "Publish": (verify.verify, verify.pack, verify.unpack, catalogue.cite, evaluate.export, protocol.app),
    "Data": (data.data, catalogue.datasets, from_pfllib.from_pfllib),
    "Develop": (catalogue.methods, catalogue.models, method.new_method, method.check_method, peer.app, speed.speed),
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
